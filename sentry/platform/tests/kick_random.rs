//! Kicks at random moments on systrap: none is lost, no register changes.

mod guests;

#[test]
fn no_kick_is_lost_at_any_moment() {
    sentry_platform::testing::never_repeat_kicks();
    let platform = guests::platform(sentry_platform::Kind::Systrap);
    guests::kicks::random_kicks(&platform, 20_000);
}
