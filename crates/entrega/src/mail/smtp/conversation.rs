//! A conversation: one mail on one connection.
//! Invariant: after a reply that does not fit, or none, the connection is not used again; the mail's end is sent only
//! to a server that took at least one recipient.
//! Never: opens or keeps connections.

use std::time::Duration;

use tokio::time::timeout;

use super::super::transport::Outgoing;
use super::data::written_out;
use super::envelope::{Step, plan, write_step};
use super::lost::Lost;
use super::opening::Connection;
use super::progress::Progress;
use super::reply::{CLOSING, Reply};
use super::wire::{Wire, WireError};

/// As many commands at once as have replies that surely fit into what the system buffers for us (RFC 2920, 3.1).
const GROUP_MAX: usize = 50;
/// A kept connection may lead nowhere without anybody saying so; a new one is then the faster way.
const FIRST_REPLY_MAX: Duration = Duration::from_secs(5);

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// It was opened just now.
    Opened,
    /// It waited for this mail; the server may have left since.
    Pool,
}

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// It is ready for the next mail.
    Keep,
    /// It is once the server forgets this one.
    Reset,
    /// The server is leaving.
    Drop,
    /// It was of no use; the mail needs another.
    Stale,
}

/// Hands a mail over, and notes in `progress` what comes of it for whom.
pub(super) async fn hand_over(
    connection: &mut Connection,
    origin: Origin,
    mail: &Outgoing<'_>,
    progress: &mut Progress,
) -> Result<After, Lost> {
    progress.talk();
    let steps = plan(mail, &connection.offers, progress);
    if steps.is_empty() {
        progress.accept_the_rest();
        return Ok(After::Keep);
    }
    connection.mails += 1;
    if let Some(after) = name_everybody(connection, origin, mail, &steps, progress).await? {
        return Ok(after);
    }
    hand_over_data(&mut connection.wire, mail, progress).await
}

/// Sends the envelope. Gives what becomes of the connection if the conversation ends with it.
async fn name_everybody(
    connection: &mut Connection,
    origin: Origin,
    mail: &Outgoing<'_>,
    steps: &[Step],
    progress: &mut Progress,
) -> Result<Option<After>, Lost> {
    let group_max = if connection.offers.pipelining { GROUP_MAX } else { 1 };
    let mut is_sender_refused = false;
    for group in steps.chunks(group_max) {
        let mut text = Vec::with_capacity(64 * group.len());
        group.iter().for_each(|step| write_step(&mut text, *step, mail, &connection.offers));
        for (number, step) in group.iter().enumerate() {
            let reply = match (number, step) {
                (0, Step::Sender) => first_reply(&mut connection.wire, &text, origin).await?,
                (0, Step::Recipient(_)) => Some(connection.wire.say(&text).await?),
                _ => Some(connection.wire.reply().await?),
            };
            let Some(reply) = reply else {
                progress.start_over();
                return Ok(Some(After::Stale));
            };
            match (is_refused(&reply, 2)?, step) {
                (false, _) => {}
                (true, _) if reply.code == CLOSING => {
                    progress.refuse_the_rest(&reply.refusal());
                    return Ok(Some(After::Drop));
                }
                (true, Step::Sender) => {
                    is_sender_refused = true;
                    progress.refuse_the_rest(&reply.refusal());
                }
                // Without a sender every recipient is out of order: that says nothing about them.
                (true, Step::Recipient(_)) if is_sender_refused => {}
                (true, Step::Recipient(place)) => progress.refuse(*place, reply.refusal()),
            }
        }
        if is_sender_refused {
            return Ok(Some(After::Keep));
        }
    }
    if !progress.is_anybody_left() {
        progress.accept_the_rest();
        return Ok(Some(After::Reset));
    }
    Ok(None)
}

/// The reply that shows whether a kept connection is still one; `None` if it is not.
async fn first_reply(wire: &mut Wire, text: &[u8], origin: Origin) -> Result<Option<Reply>, Lost> {
    match origin {
        Origin::Opened => Ok(Some(wire.say(text).await?)),
        Origin::Pool => match timeout(FIRST_REPLY_MAX, wire.say(text)).await {
            Ok(Ok(reply)) if reply.code != CLOSING => Ok(Some(reply)),
            _ => Ok(None),
        },
    }
}

/// Sends the mail itself to those who are left.
async fn hand_over_data(wire: &mut Wire, mail: &Outgoing<'_>, progress: &mut Progress) -> Result<After, Lost> {
    let reply = wire.say(b"DATA\r\n").await?;
    if is_refused(&reply, 3)? {
        progress.refuse_the_rest(&reply.refusal());
        return Ok(if reply.code == CLOSING { After::Drop } else { After::Reset });
    }
    let (text, end) = written_out(&mail.message);
    if let Err(error) = wire.write_message(text, end).await {
        // A server that had enough says so and hangs up, perhaps while we still write.
        return match wire.reply().await {
            Ok(reply) if is_refused(&reply, 2)? => {
                progress.refuse_the_rest(&reply.refusal());
                Ok(After::Drop)
            }
            _ => Err(error.into()),
        };
    }
    progress.hand_over();
    let reply = wire.reply().await?;
    match is_refused(&reply, 2)? {
        false => progress.accept_the_rest(),
        true => progress.refuse_the_rest(&reply.refusal()),
    }
    Ok(if reply.code == CLOSING { After::Drop } else { After::Keep })
}

/// Whether a reply that should be of this class is a refusal; anything else is out of place.
fn is_refused(reply: &Reply, wanted: u16) -> Result<bool, WireError> {
    match reply.code / 100 {
        class if class == wanted => Ok(false),
        4 | 5 => Ok(true),
        _ => Err(WireError::Misplaced { code: reply.code }),
    }
}
