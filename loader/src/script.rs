//! Scripts: the `#!` line, as the kernel's `fs/binfmt_script.c` reads it.

use sentry_abi::Errno;

/// How much of a file is looked at for the `#!` line (the kernel's `BINPRM_BUF_SIZE`).
pub(crate) const LINE_MAX: usize = 256;

/// How many times a script's interpreter may be a script again; one more is `ELOOP`.
pub const MAX_SCRIPT_DEPTH: usize = 5;

/// A parsed `#!` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The interpreter's path, not empty.
    pub interpreter: Vec<u8>,
    /// The one optional argument: the rest of the line, inner blanks included.
    pub argument: Option<Vec<u8>>,
}

fn is_blank(byte: &u8) -> bool {
    *byte == b' ' || *byte == b'\t'
}

fn is_terminator(byte: &u8) -> bool {
    is_blank(byte) || *byte == 0
}

impl Script {
    /// Parses the first bytes of a file (at most 256 count); `ENOEXEC` if they are no usable `#!` line.
    pub fn parse(head: &[u8]) -> Result<Script, Errno> {
        // The kernel's buffer: zero-filled, its last byte never part of a line that has no newline.
        let mut buf = [0u8; LINE_MAX];
        for (to, from) in buf.iter_mut().zip(head) {
            *to = *from;
        }
        let rest = buf.strip_prefix(b"#!").ok_or(Errno::ENOEXEC)?;
        let text_end = rest.iter().position(|&b| b == 0).unwrap_or(rest.len());
        let line = match rest.iter().take(text_end).position(|&b| b == b'\n') {
            Some(end) => rest.get(..end).unwrap_or_default(),
            None => {
                let all = rest.get(..rest.len() - 1).unwrap_or_default();
                let start = all.iter().position(|b| !is_blank(b)).ok_or(Errno::ENOEXEC)?;
                // Without a later terminator the path may have been cut off.
                if !all.iter().skip(start).any(is_terminator) {
                    return Err(Errno::ENOEXEC);
                }
                all
            }
        };
        let start = line.iter().position(|b| !is_blank(b)).ok_or(Errno::ENOEXEC)?;
        let line = line.get(start..).unwrap_or_default();
        let name_len = line.iter().position(is_terminator).unwrap_or(line.len());
        let (name, tail) = line.split_at(name_len);
        if name.is_empty() {
            return Err(Errno::ENOEXEC);
        }
        let tail = match tail.first() {
            Some(0) | None => &[],
            Some(_) => tail,
        };
        let argument = tail.iter().position(|b| !is_blank(b)).and_then(|start| {
            let text = tail.get(start..)?;
            let text = text.get(..text.iter().position(|&b| b == 0).unwrap_or(text.len()))?;
            let end = text.iter().rposition(|b| !is_blank(b))? + 1;
            text.get(..end)
        });
        Ok(Script {
            interpreter: name.to_vec(),
            argument: argument.map(<[u8]>::to_vec),
        })
    }

    /// Changes an argument list as the kernel does: argv\[0\] gives way to the interpreter, its argument and
    /// the path of the script.
    pub fn rewrite(&self, argv: &mut Vec<Vec<u8>>, path: &[u8]) {
        let head = [
            Some(self.interpreter.clone()),
            self.argument.clone(),
            Some(path.to_vec()),
        ];
        let drop = usize::from(!argv.is_empty());
        argv.splice(..drop, head.into_iter().flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ok(head: &[u8]) -> (String, Option<String>) {
        let script = Script::parse(head).unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(script.interpreter), script.argument.map(text))
    }

    #[test]
    fn lines() {
        assert_eq!(ok(b"#!/bin/sh\n"), ("/bin/sh".into(), None));
        assert_eq!(ok(b"#! \t/bin/sh  -e  \nrest"), ("/bin/sh".into(), Some("-e".into())));
        assert_eq!(ok(b"#!/usr/bin/env a b\n"), ("/usr/bin/env".into(), Some("a b".into())));
        assert_eq!(ok(b"#!/bin/sh"), ("/bin/sh".into(), None));
        assert_eq!(ok(b"#!/bin/sh -x"), ("/bin/sh".into(), Some("-x".into())));
        assert_eq!(ok(b"#!/bin/sh\0junk\n"), ("/bin/sh".into(), None));
        for bad in [&b"#!"[..], b"#!\n", b"#!   \n/bin/sh", b"#", b"", b"\x7fELF"] {
            assert_eq!(Script::parse(bad), Err(Errno::ENOEXEC));
        }
    }

    #[test]
    fn long_lines() {
        let mut line = b"#!/".to_vec();
        line.resize(300, b'a');
        assert_eq!(Script::parse(&line), Err(Errno::ENOEXEC));
        line[100] = b' ';
        let script = Script::parse(&line).unwrap();
        assert_eq!(script.interpreter.len(), 98);
        assert_eq!(script.argument.unwrap().len(), 255 - 101);
    }

    #[test]
    fn rewriting() {
        let script = Script {
            interpreter: b"/i".to_vec(),
            argument: Some(b"-x y".to_vec()),
        };
        let mut argv = vec![b"zero".to_vec(), b"one".to_vec()];
        script.rewrite(&mut argv, b"./script");
        assert_eq!(argv, [&b"/i"[..], b"-x y", b"./script", b"one"]);
        let mut argv = vec![];
        script.rewrite(&mut argv, b"s");
        assert_eq!(argv, [&b"/i"[..], b"-x y", b"s"]);
    }

    proptest! {
        #[test]
        fn any_bytes(tail in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut head = b"#!".to_vec();
            head.extend(tail);
            if let Ok(script) = Script::parse(&head) {
                prop_assert!(!script.interpreter.is_empty() && script.interpreter.len() < LINE_MAX);
                prop_assert!(!script.interpreter.iter().any(|b| is_terminator(b) || *b == b'\n'));
                prop_assert!(!script.argument.is_some_and(|a| a.contains(&0) || a.is_empty()));
            }
        }
    }
}
