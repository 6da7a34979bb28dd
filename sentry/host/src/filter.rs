//! Argument-checked seccomp filters as data: one table serves the filter, `sentry hardening` and the documents.
//!
//! A table is a list of [`HostCall`]; whatever it does not name ends the process. Calls that libraries try of
//! their own accord and can do without are *refused*: they get an errno and have no effect.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use crate::caps;

/// What one argument of a host call has to look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arg {
    /// The argument with this index, as 32 bits, equals the value.
    Is(u8, u32),
    /// The argument with this index, as 32 bits, has none of these bits set.
    Without(u8, u32),
    /// The argument with this index, as 32 bits, has all of these bits set.
    With(u8, u32),
    /// The argument with this index, all 64 bits, equals the value.
    Is64(u8, u64),
    /// The argument with this index, as 32 bits, is not above the value.
    AtMost(u8, u32),
}

/// When a host call is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Whatever its arguments.
    Always,
    /// When all the conditions of one of the lists hold.
    When(&'static [&'static [Arg]]),
    /// Never: it fails with this errno and the process lives on.
    Refuse(i32),
}

/// A row of a filter's table.
#[derive(Clone, Copy, Debug)]
pub struct HostCall {
    /// Its number (x86-64).
    pub number: i64,
    /// Its name.
    pub name: &'static str,
    /// When it is allowed.
    pub rule: Rule,
    /// What it is needed for, and what the arguments are held to.
    pub why: &'static str,
}

/// What happens to a process that makes a call outside its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outside {
    /// The process is killed, with `SIGSYS` as the cause.
    Kill,
    /// The call is turned into a `SIGSYS` (for [`crate::sigsys`]; only to find out what a table lacks).
    Trap,
}

/// What can be wrong with a filter.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The table cannot be compiled.
    #[error("the host-call table cannot be compiled: {0}")]
    Compile(String),
    /// The host refused the filter.
    #[error("the host refused the seccomp filter ({0}); there are none inside a sandbox like ours")]
    Install(String),
}

fn compile_error(error: impl std::fmt::Display) -> FilterError {
    FilterError::Compile(error.to_string())
}

fn condition(arg: Arg) -> Result<SeccompCondition, FilterError> {
    let dword = SeccompCmpArgLen::Dword;
    match arg {
        Arg::Is(index, value) => SeccompCondition::new(index, dword, SeccompCmpOp::Eq, value.into()),
        Arg::Without(index, mask) => SeccompCondition::new(index, dword, SeccompCmpOp::MaskedEq(mask.into()), 0),
        Arg::With(index, mask) => SeccompCondition::new(index, dword, SeccompCmpOp::MaskedEq(mask.into()), mask.into()),
        Arg::Is64(index, value) => SeccompCondition::new(index, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, value),
        Arg::AtMost(index, value) => SeccompCondition::new(index, dword, SeccompCmpOp::Le, value.into()),
    }
    .map_err(compile_error)
}

fn program(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    mismatch: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, FilterError> {
    SeccompFilter::new(rules, mismatch, matched, TargetArch::x86_64)
        .and_then(BpfProgram::try_from)
        .map_err(compile_error)
}

/// A compiled table, to be installed with [`Filter::install`].
pub struct Filter {
    programs: Vec<BpfProgram>,
}

impl Filter {
    /// Compiles a table.
    ///
    /// A refused call is allowed by the main program and refused by one further program for each errno: of several
    /// programs the strictest answer counts (seccomp(2)).
    pub fn compile(table: &[HostCall], outside: Outside) -> Result<Filter, FilterError> {
        let mut allowed = BTreeMap::new();
        let mut refused: BTreeMap<i32, BTreeMap<i64, Vec<SeccompRule>>> = BTreeMap::new();
        for call in table {
            let mut rules = Vec::new();
            match call.rule {
                Rule::Always => {}
                Rule::Refuse(errno) => {
                    refused.entry(errno).or_default().insert(call.number, Vec::new());
                }
                Rule::When(alternatives) => {
                    for conditions in alternatives {
                        let conditions = conditions
                            .iter()
                            .map(|arg| condition(*arg))
                            .collect::<Result<Vec<_>, _>>()?;
                        rules.push(SeccompRule::new(conditions).map_err(compile_error)?);
                    }
                    if rules.is_empty() {
                        return Err(FilterError::Compile(format!("{} has no alternative", call.name)));
                    }
                }
            }
            if allowed.insert(call.number, rules).is_some() {
                return Err(FilterError::Compile(format!("{} stands in the table twice", call.name)));
            }
        }
        let outside = match outside {
            Outside::Kill => SeccompAction::KillProcess,
            Outside::Trap => SeccompAction::Trap,
        };
        let mut programs = Vec::new();
        for (errno, rules) in refused {
            programs.push(program(
                rules,
                SeccompAction::Allow,
                SeccompAction::Errno(errno.unsigned_abs()),
            )?);
        }
        // Last: it may not leave seccomp(2) allowed.
        programs.push(program(allowed, outside, SeccompAction::Allow)?);
        Ok(Filter { programs })
    }

    /// The instructions of the main program: for a process that installs its filter by hand (the zygote).
    pub fn main_program(&self) -> &[seccompiler::sock_filter] {
        self.programs.last().map_or(&[], Vec::as_slice)
    }

    /// Installs the filter on every thread of this process, for good. Sets no_new_privs.
    pub fn install(&self) -> Result<(), FilterError> {
        for program in &self.programs {
            seccompiler::apply_filter_all_threads(program).map_err(|error| FilterError::Install(error.to_string()))?;
        }
        Ok(())
    }
}

/// To be called before a process starts its first thread, which sees to it that it can.
///
/// Libraries start threads by clone3(2), and by clone(2) where there is no such call. A filter that was written before
/// clone3 (that of an older container runtime) refuses it with EPERM, which is no reason for a library to look
/// further. Where that is so, a filter of our own says ENOSYS, and sets no_new_privs.
///
/// # Errors
/// That filter cannot be installed.
pub fn let_threads_start() -> Result<(), FilterError> {
    if !caps::is_filtered() {
        return Ok(());
    }
    match std::thread::Builder::new().stack_size(64 << 10).spawn(|| {}) {
        Ok(thread) => drop(thread.join()),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
            let unknown = program(clone3, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))?;
            Filter {
                programs: vec![unknown],
            }
            .install()?;
        }
        // Whoever starts the next thread says so.
        Err(_) => {}
    }
    Ok(())
}

/// What a table's row demands of the arguments, in words (`sentry hardening`).
pub fn describe(rule: Rule) -> String {
    let one = |arg: &Arg| match *arg {
        Arg::Is(index, value) => format!("arg{index} == {value:#x}"),
        Arg::Is64(index, value) => format!("arg{index} == {value:#x} (64 bits)"),
        Arg::Without(index, mask) => format!("arg{index} & {mask:#x} == 0"),
        Arg::With(index, mask) => format!("arg{index} & {mask:#x} == {mask:#x}"),
        Arg::AtMost(index, value) => format!("arg{index} <= {value:#x}"),
    };
    match rule {
        Rule::Always => String::new(),
        Rule::Refuse(errno) => format!("refused: {}", nix::errno::Errno::from_raw(errno)),
        Rule::When(alternatives) => {
            let all = |conditions: &&[Arg]| conditions.iter().map(one).collect::<Vec<_>>().join(" && ");
            alternatives.iter().map(all).collect::<Vec<_>>().join(" || ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[HostCall] = &[
        HostCall {
            number: libc::SYS_exit_group,
            name: "exit_group",
            rule: Rule::Always,
            why: "",
        },
        HostCall {
            number: libc::SYS_getppid,
            name: "getppid",
            rule: Rule::Refuse(libc::ENOSYS),
            why: "",
        },
        HostCall {
            number: libc::SYS_mmap,
            name: "mmap",
            rule: Rule::When(&[&[Arg::Without(2, 4), Arg::Is64(5, 0)]]),
            why: "",
        },
    ];

    #[test]
    fn a_table_compiles_and_describes_itself() {
        let filter = Filter::compile(TABLE, Outside::Kill).unwrap();
        assert_eq!(filter.programs.len(), 2);
        assert_eq!(describe(TABLE[2].rule), "arg2 & 0x4 == 0 && arg5 == 0x0 (64 bits)");
        assert_eq!(describe(TABLE[0].rule), "");
    }

    #[test]
    fn a_call_named_twice_is_an_error() {
        assert!(Filter::compile(&[TABLE[0], TABLE[0]], Outside::Kill).is_err());
    }
}
