//! Who may stream a body to the origin, who waits for it, and who is too slow.
//!
//! A body that is streamed holds a seat at the origin for as long as its client likes. So only a quarter of the seats is for such
//! bodies, and one client has at most as many of them as it leaves free: half, if it is alone. What a client has to send is little
//! while most upload seats are free and more when they are not. Whoever sends less makes room, one at a time: the slowest upload of
//! the client that holds the most goes first, and then everything is looked at again. So a client that fills the seats with slow
//! uploads loses them before a client with one slow upload does.
//!
//! There is no clock, lock or task here; `W` is whatever the shell needs to tell a waiter that it is its turn.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    time::Duration,
};

use herdproof::Tick;

/// Uploads that may wait. A waiter holds a connection and, at most, its buffered beginning.
const MOST_WAITING: usize = 1024;
/// Bytes per second that are enough in quiet times.
const QUIET: u64 = 1 << 10;
/// Between two uploads that have to go: enough for the first to be gone when the next is chosen.
const PAUSE: Duration = Duration::from_millis(100);

/// The upload seats of one origin; see the [module](self).
#[derive(Debug)]
pub(super) struct Seats<W> {
    uploads: BTreeMap<u64, Upload>,
    /// Only clients that hold a seat or wait for one.
    clients: BTreeMap<u64, Client<W>>,
    /// Clients with a line, the next to be served first.
    turns: VecDeque<u64>,
    waiting: usize,
    last_id: u64,
    /// From when on the next upload may be told to go.
    patient_until: Tick,
}

#[derive(Debug)]
struct Client<W> {
    held: u32,
    /// The oldest first.
    line: VecDeque<(u64, W)>,
}

#[derive(Debug)]
struct Upload {
    client: u64,
    /// Bytes per second, once that is known.
    rate: Option<u64>,
    /// Whether it may pause: gRPC does, and has no rate.
    pauses: bool,
    /// It has been told to go and is still here.
    leaving: bool,
}

/// What became of a request for a seat.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked<W> {
    /// To [`leave`](Seats::leave) with, whether it has a seat or waits; none if it was refused.
    pub(super) id: Option<u64>,
    /// Who has a seat from now on: this one, if there was one free for it.
    pub(super) seated: Vec<W>,
    /// Who does not wait any longer, and gets no seat: this one, or one of a client whose line is longer.
    pub(super) refused: Option<W>,
}

/// How many upload seats there are among so many seats. One seat at least is not for uploads, if there are two.
pub(super) fn seats_of(limit: u32) -> u32 {
    (limit / 4).max(2).min(limit.saturating_sub(1)).max(1)
}

/// Bytes per second that an upload must have. Counted are the seats besides its own, so that with few seats a client which is
/// alone is not taken for a crowd.
fn least_rate(held: u32, seats: u32, waiting: usize) -> u64 {
    let (others, of) = (u64::from(held.saturating_sub(1)), u64::from(seats.saturating_sub(1)));
    if of == 0 {
        return if waiting > 0 { 64 << 10 } else { QUIET };
    }
    match others * 100 / of {
        0..50 => QUIET,
        50..75 => 16 << 10,
        _ => 64 << 10,
    }
}

impl<W> Seats<W> {
    pub(super) fn new() -> Seats<W> {
        Seats {
            uploads: BTreeMap::new(),
            clients: BTreeMap::new(),
            turns: VecDeque::new(),
            waiting: 0,
            last_id: 0,
            patient_until: Tick::ZERO,
        }
    }

    /// A seat for this client, or a place in its line.
    pub(super) fn ask(&mut self, client: u64, waiter: W, seats: u32) -> Asked<W> {
        let mut refused = None;
        if self.waiting >= MOST_WAITING {
            refused = self.shorten_longest(client);
            if refused.is_none() {
                return Asked { id: None, seated: Vec::new(), refused: Some(waiter) };
            }
        }
        self.last_id += 1;
        let id = self.last_id;
        let entry = self.clients.entry(client).or_insert_with(|| Client { held: 0, line: VecDeque::new() });
        if entry.line.is_empty() {
            self.turns.push_back(client);
        }
        entry.line.push_back((id, waiter));
        self.waiting += 1;
        Asked { id: Some(id), seated: self.seat_next(seats), refused }
    }

    /// Takes the last of the longest line, if that is longer than this client's will be.
    fn shorten_longest(&mut self, client: u64) -> Option<W> {
        let own = self.clients.get(&client).map_or(0, |client| client.line.len());
        let (longest, entry) = self.clients.iter_mut().max_by_key(|(_, entry)| entry.line.len())?;
        if entry.line.len() <= own + 1 {
            return None;
        }
        let longest = *longest;
        let (_, waiter) = entry.line.pop_back()?;
        self.left_line(longest);
        Some(waiter)
    }

    /// This one has ended, or does not wait any longer. Who has a seat from now on is given.
    pub(super) fn leave(&mut self, id: u64, client: u64, seats: u32) -> Vec<W> {
        if self.uploads.remove(&id).is_some() {
            if let Entry::Occupied(mut entry) = self.clients.entry(client) {
                entry.get_mut().held -= 1;
                forget_if_gone(entry);
            }
        } else if let Some(entry) = self.clients.get_mut(&client)
            && let Some(place) = entry.line.iter().position(|(waiting, _)| *waiting == id)
        {
            entry.line.remove(place);
            self.left_line(client);
        }
        self.seat_next(seats)
    }

    /// One of this client's line is gone.
    fn left_line(&mut self, client: u64) {
        self.waiting -= 1;
        if let Entry::Occupied(entry) = self.clients.entry(client) {
            if entry.get().line.is_empty() {
                self.turns.retain(|turn| *turn != client);
            }
            forget_if_gone(entry);
        }
    }

    /// Seats those whose turn it is: of the clients that may have one more, the one that holds the fewest, in turns.
    fn seat_next(&mut self, seats: u32) -> Vec<W> {
        let mut seated = Vec::new();
        loop {
            let free = seats.saturating_sub(self.held());
            let held = |client: &u64| self.clients.get(client).map_or(0, |client| client.held);
            let next = self.turns.iter().enumerate().filter(|(_, client)| held(client) < free);
            let Some((turn, &client)) = next.min_by_key(|(_, client)| held(client)) else { return seated };
            self.turns.remove(turn);
            let Some(entry) = self.clients.get_mut(&client) else { continue };
            let Some((id, waiter)) = entry.line.pop_front() else { continue };
            entry.held += 1;
            self.waiting -= 1;
            if !entry.line.is_empty() {
                self.turns.push_back(client);
            }
            self.uploads.insert(id, Upload { client, rate: None, pauses: false, leaving: false });
            seated.push(waiter);
        }
    }

    /// This upload may pause for as long as nobody needs its seat.
    pub(super) fn may_pause(&mut self, id: u64) {
        if let Some(upload) = self.uploads.get_mut(&id) {
            upload.pauses = true;
        }
    }

    /// Whether this upload, which waits for its client, has to go.
    pub(super) fn must_go(&mut self, id: u64, rate: Option<u64>, seats: u32, now: Tick) -> bool {
        if let Some(upload) = self.uploads.get_mut(&id) {
            upload.rate = rate;
        }
        if now >= self.patient_until
            && let Some(slowest) = self.slowest(seats)
            && let Some(upload) = self.uploads.get_mut(&slowest)
        {
            upload.leaving = true;
            self.patient_until = now + PAUSE;
        }
        self.uploads.get(&id).is_some_and(|upload| upload.leaving)
    }

    /// Of the uploads that are too slow, the slowest of the client that holds the most. As long as it is not known how fast a client
    /// with more seats is, nobody goes who sends what is enough in quiet times: who has just filled the seats must not have others
    /// sent away before its own turn.
    fn slowest(&self, seats: u32) -> Option<u64> {
        let there = || self.uploads.iter().filter(|(_, upload)| !upload.leaving);
        let mut clients = BTreeMap::<u64, u32>::new();
        for (_, upload) in there() {
            *clients.entry(upload.client).or_default() += 1;
        }
        let held = |upload: &Upload| clients.get(&upload.client).copied().unwrap_or(0);
        let all = clients.values().sum();
        let least = least_rate(all, seats, self.waiting);
        let is_needed = all >= seats && self.waiting > 0;
        let unknown = there().filter(|(_, upload)| upload.rate.is_none()).map(|(_, upload)| held(upload)).max();
        let slow = there().filter_map(|(id, upload)| {
            let rate = upload.rate.filter(|rate| *rate < least && (is_needed || !upload.pauses))?;
            let is_known = rate < QUIET || unknown.is_none_or(|unknown| held(upload) >= unknown);
            is_known.then_some((held(upload), Reverse(rate), Reverse(*id)))
        });
        slow.max().map(|(_, _, Reverse(id))| id)
    }

    /// How many have a seat.
    pub(super) fn held(&self) -> u32 {
        u32::try_from(self.uploads.len()).unwrap_or(u32::MAX)
    }

    /// How many wait for one.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }
}

fn forget_if_gone<W>(entry: std::collections::btree_map::OccupiedEntry<'_, u64, Client<W>>) {
    if entry.get().held == 0 && entry.get().line.is_empty() {
        entry.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    /// Seats whose waiters are told apart by their names.
    struct Room {
        seats: Seats<&'static str>,
        count: u32,
        /// Id and client of everybody, by name.
        names: BTreeMap<&'static str, (u64, u64)>,
    }

    impl Room {
        fn new(count: u32) -> Room {
            Room { seats: Seats::new(), count, names: BTreeMap::new() }
        }

        fn ask(&mut self, client: u64, name: &'static str) -> Vec<&'static str> {
            let asked = self.seats.ask(client, name, self.count);
            self.names.insert(name, (asked.id.unwrap(), client));
            asked.seated
        }

        fn leave(&mut self, name: &str) -> Vec<&'static str> {
            let (id, client) = self.names[name];
            self.seats.leave(id, client, self.count)
        }

        fn must_go(&mut self, name: &str, rate: u64, millis: u64) -> bool {
            self.seats.must_go(self.names[name].0, Some(rate), self.count, Tick::from_nanos(millis * 1_000_000))
        }

        /// Seats that a client holds when it has asked for as many as it likes.
        fn fill(&mut self, client: u64) -> u32 {
            (0..self.count).map(|_| u32::try_from(self.ask(client, "x").len()).unwrap()).sum()
        }
    }

    #[test]
    fn uploads_never_have_all_seats_unless_there_is_one() {
        for (limit, seats) in [(1, 1), (2, 1), (3, 2), (8, 2), (12, 3), (256, 64), (100_000, 25_000)] {
            assert_eq!(seats_of(limit), seats, "{limit}");
        }
    }

    #[test]
    fn one_client_leaves_half_of_the_seats_free_and_there_is_one_for_everybody_else() {
        let mut room = Room::new(64);
        assert_eq!(room.fill(1), 32);
        assert_eq!(room.fill(2), 16);
        assert_eq!(room.fill(3), 8);
        assert_eq!(room.ask(4, "good"), ["good"]);
        let mut room = Room::new(2);
        assert_eq!((room.fill(1), room.fill(2)), (1, 1));
    }

    #[test]
    fn a_seat_goes_to_the_client_that_holds_fewest_however_many_of_another_waited_before() {
        let mut room = Room::new(2);
        assert_eq!(room.ask(1, "a"), ["a"]);
        assert_eq!(room.ask(2, "b"), ["b"]);
        assert_eq!(room.ask(1, "a2"), [""; 0]);
        assert_eq!(room.ask(1, "a3"), [""; 0]);
        assert_eq!(room.ask(3, "c"), [""; 0]);
        assert_eq!(room.leave("b"), ["c"]);
        assert_eq!(room.leave("a"), ["a2"], "in the order in which they came");
        assert_eq!(room.leave("a3"), [""; 0], "who leaves the line is not seated");
        assert_eq!((room.leave("c"), room.leave("a2")), (vec![], vec![]));
        assert_eq!((room.seats.held(), room.seats.waiting()), (0, 0));
        assert!(room.seats.clients.is_empty() && room.seats.turns.is_empty());
    }

    #[test]
    fn a_limit_that_falls_seats_nobody_before_enough_have_left() {
        let mut room = Room::new(8);
        for (client, name) in [(1, "a"), (2, "b"), (3, "c")] {
            assert_eq!(room.ask(client, name), [name]);
        }
        room.count = 2;
        assert_eq!(room.ask(4, "d"), [""; 0]);
        assert_eq!((room.leave("a"), room.leave("b")), (vec![], vec!["d"]));
    }

    #[test]
    fn a_flood_of_waiters_takes_the_place_of_its_own_only() {
        let mut room = Room::new(1);
        room.ask(1, "first");
        room.ask(2, "good");
        for _ in room.seats.waiting()..MOST_WAITING {
            room.ask(1, "flood");
        }
        let more = room.seats.ask(1, "one more", 1);
        assert_eq!((more.id, more.refused), (None, Some("one more")));
        let other = room.seats.ask(3, "another client", 1);
        assert!(other.id.is_some() && other.refused == Some("flood"));
        assert_eq!(room.seats.waiting(), MOST_WAITING);
        assert_eq!(room.leave("first"), ["good"]);
    }

    #[test]
    fn a_line_that_is_full_of_clients_with_one_each_loses_none_of_them() {
        let mut seats = Seats::new();
        for client in 0..=MOST_WAITING as u64 {
            seats.ask(client, client, 1);
        }
        let late = seats.ask(5000, 5000, 1);
        assert_eq!((late.id, late.refused), (None, Some(5000)));
    }

    #[test]
    fn what_a_client_has_to_send_rises_with_what_is_taken() {
        for (held, rate) in [(1, 1), (32, 1), (33, 16), (48, 16), (49, 64), (64, 64)] {
            assert_eq!(least_rate(held, 64, 0), rate * KIB, "{held}");
        }
        assert_eq!((least_rate(1, 2, 0), least_rate(2, 2, 0)), (KIB, 64 * KIB), "alone is no crowd");
        assert_eq!((least_rate(1, 1, 0), least_rate(1, 1, 1)), (KIB, 64 * KIB));
    }

    #[test]
    fn the_slowest_of_the_largest_holder_goes_first_and_then_it_is_looked_at_again() {
        let mut room = Room::new(100);
        let rates = [(1, "slower", 4 * KIB), (1, "slow", 8 * KIB), (2, "slowest", KIB)];
        for (client, name, rate) in rates {
            assert_eq!(room.ask(client, name), [name]);
            assert!(!room.must_go(name, rate, 0), "there is room for all");
        }
        // Of four seats, two of three others are taken: 16 KiB a second are wanted, and nobody sends that.
        room.count = 4;
        assert!(!room.must_go("slowest", KIB, 100), "its client holds fewer");
        assert!(!room.must_go("slow", 8 * KIB, 150), "one at a time");
        assert!(room.must_go("slower", 4 * KIB, 160));
        room.leave("slower");
        assert!(!room.must_go("slow", 8 * KIB, 1_000), "there is room again");
        assert!(!room.must_go("slowest", KIB, 2_000));
        assert!(room.must_go("slowest", KIB - 1, 3_000), "this is too slow for any number");
    }

    #[test]
    fn whoever_fills_the_seats_slowly_loses_them_before_a_slow_client_with_one() {
        let mut room = Room::new(8);
        let names = ["a", "b", "c", "d"];
        assert_eq!(room.ask(2, "good"), ["good"]);
        for name in names {
            assert_eq!(room.ask(1, name), [name]);
        }
        // Half of the others are taken, and the good client sends 4 KiB a second. Nobody knows yet what the other sends.
        let mut now = 1_000;
        assert!(!room.must_go("good", 4 * KIB, now));
        for name in names {
            now += 100;
            assert!(room.must_go(name, 0, now), "{name}");
            assert!(!room.must_go("good", 4 * KIB, now));
            room.leave(name);
        }
        assert!(!room.must_go("good", 4 * KIB, now + 1_000));
    }

    #[test]
    fn an_upload_that_may_pause_gives_way_only_to_somebody_who_waits() {
        let mut room = Room::new(2);
        for (client, name) in [(1, "calls"), (2, "sends")] {
            room.ask(client, name);
        }
        room.seats.may_pause(room.names["calls"].0);
        assert!(!room.must_go("sends", 100 * KIB, 0));
        assert!(!room.must_go("calls", 0, 1_000), "all seats are taken, and nobody minds");
        room.ask(3, "waits");
        assert!(room.must_go("calls", 0, 2_000));
    }

    #[test]
    fn nobody_is_sent_away_before_its_rate_is_known() {
        let mut room = Room::new(1);
        room.ask(1, "new");
        room.ask(2, "waits");
        let id = room.names["new"].0;
        assert!(!room.seats.must_go(id, None, 1, Tick::from_nanos(1 << 40)));
    }
}
