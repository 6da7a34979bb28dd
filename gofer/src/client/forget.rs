//! Nodes that the sentry gives back, and descriptors that the gofer is to have closed.

use std::sync::atomic::Ordering;

use super::Client;
use super::connection::Connection;
use crate::protocol::{NodeId, Request};

impl Client {
    /// To be called before the last close of a file that was open for writing, where closing it is told to guests: after
    /// an answer, the gofer holds no descriptor that it has sent, so that the close here is the last. It does not wait
    /// for others who use the connection: then the gofer's close may be later.
    pub fn settle(&self) {
        if self.reports().is_none() || !self.alive() {
            return;
        }
        if let Some(mut connection) = self.connection.try_lock() {
            // About no node: that there is an answer is what counts.
            let _ = self.call_on(&mut connection, &Request::GetAttributes { node: NodeId(0) }, None);
        }
    }

    /// Gives a node back, `count` times. It is sent with a later request.
    pub fn forget(&self, node: NodeId, count: u32) {
        if self.alive() {
            self.forgotten.lock().push((node, count));
        }
    }

    /// As [`Self::forget`], but sent at once, or with the request that is being made: a file without a name takes space
    /// until then.
    pub fn forget_now(&self, node: NodeId, count: u32) {
        self.forget(node, count);
        self.urgent.store(true, Ordering::SeqCst);
        if let Some(mut connection) = self.connection.try_lock() {
            self.send_forgotten(&mut connection);
        }
    }

    /// Sends as much as goes without waiting of what is to be forgotten.
    pub(super) fn send_forgotten(&self, connection: &mut Connection) {
        self.urgent.store(false, Ordering::SeqCst);
        let nodes = std::mem::take(&mut *self.forgotten.lock());
        let sent = connection.try_forget(&nodes);
        if sent < nodes.len() {
            self.urgent.store(true, Ordering::SeqCst);
            self.forgotten.lock().extend_from_slice(&nodes[sent..]);
        }
    }
}
