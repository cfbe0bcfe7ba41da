//! What clients may hold in buffers, together and each.
//!
//! A small body is read before a seat at the origin is taken, so a client that sends it slowly holds memory instead. The memory is
//! bounded for all clients together. Up to half of the bound anybody may have it; beyond that one client has an eighth at most, so
//! that one client's connections cannot take the part of the others.

use std::collections::{BTreeMap, btree_map::Entry};

/// Bytes in buffers, by client.
#[derive(Debug)]
pub(super) struct Memory {
    most: u64,
    used: u64,
    /// Only clients that hold something: no more than there are connections.
    clients: BTreeMap<u64, u64>,
}

/// Whether there is memory for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Given,
    /// Others have it all.
    Full,
    /// This client has its share.
    Share,
}

impl Memory {
    pub(super) fn new(most: u64) -> Memory {
        Memory { most, used: 0, clients: BTreeMap::new() }
    }

    /// Takes so many bytes for this client, if it may have them.
    pub(super) fn take(&mut self, client: u64, bytes: u64) -> Room {
        let held = self.clients.get(&client).copied().unwrap_or(0);
        let used = self.used + bytes;
        if used > self.most / 2 && held + bytes > self.most / 8 {
            return Room::Share;
        }
        if used > self.most {
            return Room::Full;
        }
        self.used = used;
        self.clients.insert(client, held + bytes);
        Room::Given
    }

    /// They are free again.
    pub(super) fn give_back(&mut self, client: u64, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
        if let Entry::Occupied(mut held) = self.clients.entry(client) {
            *held.get_mut() = held.get().saturating_sub(bytes);
            if *held.get() == 0 {
                held.remove();
            }
        }
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SMALL: u64 = 64 << 10;

    /// How much a client gets in pieces of 64 KiB, and why no more.
    fn fill(memory: &mut Memory, client: u64) -> (u64, Room) {
        let mut got = 0;
        loop {
            match memory.take(client, SMALL) {
                Room::Given => got += SMALL,
                refused => return (got, refused),
            }
        }
    }

    #[test]
    fn one_client_leaves_half_to_the_others_and_each_of_these_has_its_share() {
        let mut memory = Memory::new(16 * MIB);
        assert_eq!(fill(&mut memory, 1), (8 * MIB, Room::Share));
        for client in 2..6 {
            assert_eq!(fill(&mut memory, client), (2 * MIB, Room::Share), "client {client}");
        }
        assert_eq!(memory.take(6, SMALL), Room::Full, "nobody's fault but that of many");
        assert_eq!(memory.take(2, SMALL), Room::Share);
        memory.give_back(1, 8 * MIB);
        assert_eq!((memory.take(6, SMALL), memory.used()), (Room::Given, 8 * MIB + SMALL));
    }

    #[test]
    fn what_is_given_back_leaves_nothing_behind() {
        let mut memory = Memory::new(MIB);
        for client in 0..1000 {
            assert_eq!(memory.take(client, 1000), Room::Given);
            memory.give_back(client, 1000);
        }
        assert_eq!((memory.used(), memory.clients.len()), (0, 0));
    }
}
