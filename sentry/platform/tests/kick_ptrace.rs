//! Kicks on ptrace: at every instruction of the stub's way to the guest, and at random moments. None is lost, and no
//! register changes.

mod guests;

use sentry_platform::Kind;

#[test]
fn no_kick_is_lost_at_any_instruction() {
    sentry_platform::testing::never_repeat_kicks();
    let platform = guests::platform(Kind::Ptrace);
    guests::kicks::kick_at_every_step(&platform, true);
    guests::kicks::kick_at_every_step(&platform, false);
    guests::kicks::random_kicks(&platform, 8_000);
}
