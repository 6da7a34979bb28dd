//! Mailboxes: requests, what is brought along, and the signal frames with the guest's registers.

use sentry_platform::fuzz::Mailbox;

use super::{Run, Target, outcome};

/// See the module.
pub const TARGET: Target = Target {
    name: "mailbox",
    seeds,
    words: &[b"XSPF", b"EXPF", &[0; 8], &[255; 8], &[0, 16, 0, 0], &[1, 0, 0, 0]],
    make,
};

fn seeds() -> Vec<Vec<u8>> {
    (0..8).map(Mailbox::seed).collect()
}

fn make() -> Run {
    let mailbox = Mailbox::new();
    Box::new(move |input| match &mailbox {
        Ok(mailbox) => mailbox.run(input).map(|found| outcome(&found)),
        Err(error) => Err(format!("no arena: {error:?}")),
    })
}
