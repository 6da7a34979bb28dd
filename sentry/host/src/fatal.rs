//! What a part of the sentry says when the whole cannot go on, from wherever it notices.

use std::sync::OnceLock;

/// Tells the supervisor and ends the process.
pub type Hook = Box<dyn Fn(&str) + Send + Sync>;

static HOOK: OnceLock<Hook> = OnceLock::new();
static WARN: OnceLock<Hook> = OnceLock::new();

/// Sets what [`end`] does. Only the first call counts.
pub fn set_hook(hook: Hook) {
    let _ = HOOK.set(hook);
}

/// Ends the sandbox, saying why. Returns where nobody has set a hook (in tests of single parts).
pub fn end(why: &str) {
    if let Some(hook) = HOOK.get() {
        hook(why);
    }
}

/// Sets what [`warn()`] does. Only the first call counts.
pub fn set_warn_hook(hook: Hook) {
    let _ = WARN.set(hook);
}

/// Tells the supervisor of something that should not be; the sandbox goes on.
pub fn warn(what: &str) {
    if let Some(hook) = WARN.get() {
        hook(what);
    }
}
