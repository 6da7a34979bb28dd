//! `--diff` and `--diff-out`: what a command changed, against the host's tree and GNU tar.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SENTRY: &str = env!("CARGO_BIN_EXE_sentry");
const PLATFORMS: [&str; 2] = ["systrap", "ptrace"];

/// A host tree in a directory of its own.
fn tree() -> tempfile::TempDir {
    let top = tempfile::tempdir().expect("a directory");
    fs::create_dir(top.path().join("lower")).expect("mkdir");
    sh(
        &top.path().join("lower"),
        "umask 022; mkdir a b empty deep deep/er; echo 1 >a/one; echo 2 >a/two; echo x >b/x; echo f >file; echo g >gone
         ln -s file link; echo h >h1; ln h1 h2; echo d >deep/er/d; mkdir deep/sub; echo s >deep/sub/s; chmod 755 .
         touch -d '2001-02-03 04:05:06.789' file h1 a/one a/two; : >kind; mkdir kinddir; echo k >kinddir/k",
    );
    top
}

fn sh(dir: &Path, script: &str) -> String {
    let output = Command::new("sh").args(["-e", "-c", script]).current_dir(dir).output();
    let output = output.expect("sh");
    assert!(output.status.success(), "{script}: {}", error(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn sentry(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(SENTRY);
    command.arg("exec").args(args).current_dir(dir);
    command.output().expect("it starts")
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The list without the directory's own path in front.
fn list(text: &str, dir: &Path) -> Vec<String> {
    let prefix = format!(" {}", dir.to_str().expect("UTF-8"));
    let line = |line: &str| line.replacen(&prefix, " ", 1).replacen(" /", " ", 1);
    text.lines().map(line).collect()
}

const CHANGES: &str = "echo new >a/new; echo more >>a/one; : >>a/two; chmod 600 file; rm gone; rm -r b; mkdir b
    echo y >b/y; mv empty moved; echo h >>h2; mv deep/sub sub; echo n >sub/n; rm kind; mkdir kind; rm -r kinddir
    : >kinddir; echo out";

#[test]
fn the_list_says_what_was_added_changed_and_deleted() {
    for platform in PLATFORMS {
        let top = tree();
        let lower = top.path().join("lower");
        let output = sentry(&lower, &["--platform", platform, "--diff", "sh", "-e", "-c", CHANGES]);
        assert_eq!(
            (output.status.code(), out(&output).as_str()),
            (Some(0), "out\n"),
            "{}",
            error(&output)
        );
        let expected = "C |C a|A a/new|C a/one|C b|D b/x|A b/y|C deep|D deep/sub|D empty|C file|D gone|C h2|C kind\
            |C kinddir|A moved|A sub|A sub/n|A sub/s";
        assert_eq!(
            list(&error(&output), &lower),
            expected.split('|').collect::<Vec<_>>(),
            "{platform}"
        );
        // The same in a file.
        let file = top.path().join("list");
        let option = format!("--diff={}", file.display());
        let output = sentry(&lower, &["--platform", platform, &option, "sh", "-e", "-c", CHANGES]);
        assert_eq!((output.status.code(), error(&output).as_str()), (Some(0), ""));
        let text = fs::read_to_string(file).expect("the list");
        assert_eq!(
            list(&text, &lower),
            expected.split('|').collect::<Vec<_>>(),
            "{platform}"
        );
    }
}

#[test]
fn what_is_not_changed_is_not_told() {
    let top = tree();
    let lower = top.path().join("lower");
    // Written and taken back, opened for writing, made and removed, read; elsewhere in memory.
    let script = "cat a/one deep/er/d >/dev/null; : >>file; echo x >new; rm new; echo x >/tmp/x; touch -d @5 h1
        touch -d '2001-02-03 04:05:06.789' h1; chmod 600 h2; chmod 644 h2";
    let output = sentry(&lower, &["--diff", "sh", "-e", "-c", script]);
    // A directory's time of modification tells of a name that came and went.
    assert_eq!(
        (output.status.code(), list(&error(&output), &lower)),
        (Some(0), vec!["C ".into()])
    );
}

#[test]
fn mount_points_are_no_changes_of_a_root() {
    let top = tree();
    let lower = top.path().join("lower");
    let mut args = vec!["--root", lower.to_str().expect("UTF-8"), "--diff"];
    for dir in ["/usr:/usr", "/bin:/bin", "/lib:/lib", "/lib64:/lib64"] {
        if Path::new(dir.split(':').next().unwrap()).exists() {
            args.extend(["--ro", dir]);
        }
    }
    let nothing = sentry(top.path(), &[&args[..], &["/bin/sh", "-c", ":"]].concat());
    assert_eq!((nothing.status.code(), error(&nothing).as_str()), (Some(0), ""));
    args.extend(["/bin/sh", "-e", "-c", "echo x >/x; mkdir /a/d; echo 3 >>/deep/er/d"]);
    let output = sentry(top.path(), &args);
    assert_eq!(
        (output.status.code(), error(&output).as_str()),
        (Some(0), "C /\nC /a\nA /a/d\nC /deep\nC /deep/er\nC /deep/er/d\nA /x\n")
    );
}

#[test]
fn names_cannot_write_to_the_terminal() {
    let top = tree();
    let lower = top.path().join("lower");
    let script = r#"cd a; : >"$(printf 'e\033[31m\nx\\')"; : >"$(printf 'z\377')"; : >"$(printf '\303\244')""#;
    let output = sentry(&lower, &["--diff", "sh", "-e", "-c", script]);
    let expected = ["C ", "C a", r"A a/e\033[31m\012x\\", r"A a/z\377", "A a/ä"].map(str::to_owned);
    let mut found = list(&error(&output), &lower);
    // In the order of bytes.
    let mut sorted = expected.to_vec();
    sorted[3..].sort();
    found[3..].sort();
    assert_eq!(found, sorted);
}

/// What the tree shows: names, attributes, sums.
const MANIFEST: &str = r"LC_ALL=C; export LC_ALL; find . ! -type d -printf '%P|%y|%m|%U:%G|%s|%T@|%n|%l\n' | sort
    find . -mindepth 1 -type d -printf '%P|%y|%m|%U:%G|%T@\n' | sort
    find . -type f -size -2000k -exec cksum {} + | sort";

/// Puts a layer on a tree, as an image's layers are put together.
fn apply(layer: &Path, tree: &Path) {
    let mut entries: Vec<PathBuf> = fs::read_dir(layer)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    entries.sort();
    if layer.join(".wh..wh..opq").exists() {
        for entry in fs::read_dir(tree).expect("a directory") {
            remove(&entry.expect("an entry").path());
        }
        fs::remove_file(layer.join(".wh..wh..opq")).expect("the mark");
    }
    for from in entries.iter().filter(|path| path.symlink_metadata().is_ok()) {
        let name = from.file_name().expect("a name").as_bytes();
        if let Some(hidden) = name.strip_prefix(b".wh.") {
            remove(&tree.join(OsStr::from_bytes(hidden)));
            fs::remove_file(from).expect("a whiteout");
        } else if from.symlink_metadata().expect("it exists").is_dir() {
            let to = tree.join(OsStr::from_bytes(name));
            if !to.symlink_metadata().is_ok_and(|old| old.is_dir()) {
                remove(&to);
                fs::create_dir(&to).expect("mkdir");
            }
            apply(from, &to);
        } else {
            remove(&tree.join(OsStr::from_bytes(name)));
        }
    }
}

fn remove(path: &Path) {
    match path.symlink_metadata() {
        Ok(old) if old.is_dir() => fs::remove_dir_all(path).expect("removed"),
        Ok(_) => fs::remove_file(path).expect("removed"),
        Err(_) => {}
    }
}

/// Extracts an archive with GNU tar, and puts it on a copy of the tree below `top`; the copy.
fn extracted(top: &Path, archive: &Path) -> PathBuf {
    let (layer, copy) = (top.join("layer"), top.join("copy"));
    for dir in [&layer, &copy] {
        remove(dir);
    }
    fs::create_dir(&layer).expect("mkdir");
    sh(top, "cp -a lower copy");
    let tar = |into: &Path, more: &[&str]| {
        let mut command = Command::new("tar");
        command
            .args(["--xattrs", "--xattrs-include=*", "-xpf"])
            .arg(archive)
            .arg("-C")
            .arg(into)
            .args(more);
        let output = command.output().expect("tar");
        // It remarks on times in the future and before 1970.
        let remarks = error(&output);
        let known = remarks.lines().all(|line| line.contains("time stamp"));
        assert!(output.status.success() && known, "{remarks}");
    };
    tar(&layer, &[]);
    let lower = top.join("lower");
    let inside = lower.strip_prefix("/").expect("absolute");
    // First what goes, by a copy of the layer; then what is there, with all attributes, by tar once more.
    apply(&layer.join(inside), &copy);
    let strip = format!("--strip-components={}", inside.components().count());
    tar(&copy, &[&strip, "--exclude=.wh.*"]);
    copy
}

const MUCH: &str = r#"umask 022
    long=$(printf '%0250d' 7); mkdir -p "$long/$long"; echo deep >"$long/$long/$long"; ln -s "$long/$long" a/far
    ln "$long/$long/$long" a/hard; : >"$(printf 'bad\377name')"; ln -s gone dangling; mkfifo pipe; echo s >set
    chmod 4711 set; mkdir sticky; chmod 1777 sticky; truncate -s 12G sparse; printf end >>sparse
    printf middle | dd of=sparse bs=1 seek=5000000000 conv=notrunc 2>/dev/null
    truncate -s 100k holes; dd if=/dev/zero bs=300k count=1 2>/dev/null | tr '\0' z >big
    printf x | dd of=holes bs=1 seek=99999 conv=notrunc 2>/dev/null; echo gone >was; rm was
    touch -d '1969-12-31 12:00:00.25' set; touch -d '2400-01-01' a/one; touch -h -d @77.5 dangling
    echo changed >kept; ln kept kept2; mv a/two renamed; ln h1 h3"#;

#[test]
fn an_archive_makes_of_the_hosts_tree_what_the_guest_saw() {
    for platform in PLATFORMS {
        for script in [CHANGES, MUCH] {
            let top = tree();
            let lower = top.path().join("lower");
            let archive = top.path().join("out.tar");
            let script = format!("{script}\n echo ----; {MANIFEST}");
            let args = [
                "--platform",
                platform,
                "--diff-out",
                archive.to_str().expect("UTF-8"),
                "sh",
                "-e",
                "-c",
                &script,
            ];
            let output = sentry(&lower, &args);
            assert_eq!((output.status.code(), error(&output).as_str()), (Some(0), ""));
            let size = fs::metadata(&archive).expect("the archive").len();
            assert!(size < 4 << 20, "{size}");
            let copy = extracted(top.path(), &archive);
            let printed = out(&output);
            let (_, seen) = printed.split_once("----\n").expect("the mark");
            similar(&sh(&copy, MANIFEST), seen, platform);
        }
    }
}

fn similar(found: &str, expected: &str, platform: &str) {
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected, "{platform}");
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "{platform}");
}

#[test]
fn extended_attributes_are_kept() {
    let script = "import os\nos.setxattr('file', 'user.a=b%', b'v\\0\\n=')\nos.setxattr('a', 'user.dir', b'x' * 300)";
    let top = tree();
    let lower = top.path().join("lower");
    let archive = top.path().join("out.tar");
    let args = [
        "--diff-out",
        archive.to_str().expect("UTF-8"),
        "/usr/bin/python3",
        "-c",
        script,
    ];
    let output = sentry(&lower, &args);
    assert_eq!((output.status.code(), error(&output).as_str()), (Some(0), ""));
    let copy = extracted(top.path(), &archive);
    let look = "import os; print(os.getxattr('file', 'user.a=b%'), len(os.getxattr('a', 'user.dir')))";
    let seen = Command::new("/usr/bin/python3")
        .args(["-c", look])
        .current_dir(copy)
        .output()
        .expect("python3");
    assert_eq!(out(&seen), "b'v\\x00\\n=' 300\n", "{}", error(&seen));
}

#[test]
fn nothing_is_lost_when_the_command_is_killed() {
    for platform in PLATFORMS {
        for (options, script, code) in [
            (&[][..], "echo x >new; kill -9 $$", 137),
            (&["--timeout", "0.5"], "echo x >new; exec sleep 60", 124),
            (
                &["--timeout", "0.5"],
                "echo x >new; trap '' TERM; while :; do sleep 60; done",
                124,
            ),
        ] {
            let top = tree();
            let lower = top.path().join("lower");
            let archive = top.path().join("out.tar");
            let mut args = vec![
                "--platform",
                platform,
                "--diff",
                "--diff-out",
                archive.to_str().expect("UTF-8"),
            ];
            args.extend(options);
            args.extend(["sh", "-c", script]);
            let output = sentry(&lower, &args);
            assert_eq!(
                output.status.code(),
                Some(code),
                "{platform} {script} {}",
                error(&output)
            );
            let listed: Vec<_> = error(&output)
                .lines()
                .filter(|line| !line.starts_with("sentry: "))
                .map(str::to_owned)
                .collect();
            assert_eq!(list(&listed.join("\n"), &lower), ["C ", "A new"], "{platform} {script}");
            let copy = extracted(top.path(), &archive);
            assert_eq!(fs::read_to_string(copy.join("new")).expect("it is there"), "x\n");
        }
    }
}

#[test]
fn files_that_cannot_be_written_are_told_before_or_in_the_end() {
    let top = tree();
    let lower = top.path().join("lower");
    for option in ["--diff=/no/such/dir/f", "--diff-out=/no/such/dir/f"] {
        let output = sentry(&lower, &[option, "echo", "ran"]);
        assert_eq!(
            (output.status.code(), out(&output).as_str()),
            (Some(125), ""),
            "{option}"
        );
        assert!(error(&output).contains("/no/such/dir/f: "), "{}", error(&output));
    }
    for option in ["--diff=/dev/full", "--diff-out=/dev/full"] {
        let output = sentry(&lower, &[option, "sh", "-c", "echo x >new"]);
        assert_eq!(output.status.code(), Some(125), "{option} {}", error(&output));
        assert!(error(&output).contains("No space left"), "{}", error(&output));
    }
}

#[test]
fn names_that_mean_something_to_layers_are_not_kept() {
    let top = tree();
    let lower = top.path().join("lower");
    let archive = top.path().join("out.tar");
    let script = "echo x >.wh.file; mkdir .wh.dir; echo y >.wh.dir/y; echo z >z";
    let output = sentry(
        &lower,
        &["--diff-out", archive.to_str().expect("UTF-8"), "sh", "-e", "-c", script],
    );
    assert_eq!(output.status.code(), Some(0));
    assert!(
        error(&output).contains("3 sockets, and names that begin with `.wh.`"),
        "{}",
        error(&output)
    );
    let copy = extracted(top.path(), &archive);
    assert_eq!(fs::read_to_string(copy.join("file")).expect("it is there"), "f\n");
    assert!(copy.join("z").exists());
    assert_eq!(
        fs::metadata(&archive).expect("it is there").permissions().mode() & 0o111,
        0
    );
}
