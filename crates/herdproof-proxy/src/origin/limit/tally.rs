//! What was seen in a window, by client: statistics that no single client can move.
//!
//! A share or a median over all requests belongs to whoever sends most of them. So samples are kept in buckets by client, the
//! buckets are put together into groups that are large enough to have a share worth the name, and what counts is the lower
//! median over the groups (median of means). One client is in one group, however much it sends. And what others saw in the last
//! windows counts while they are silent: otherwise a client that sends in bursts has some windows to itself.

use std::time::Duration;

/// Clients are told apart by so many buckets.
const BUCKETS: usize = 64;
/// Times that are kept of each.
const KEPT: usize = 16;
/// A share of fewer samples than this says little, so groups have about as many. No bucket counts for more than that: otherwise
/// one client that sends most would split the others into groups of one sample each.
const GROUP: u32 = 25;
/// For so many windows a bucket without samples counts as it was.
const SILENT: u32 = 10;
/// Groups, and routes with refusals, from which on something is true of the origin and not of a client or a feature of it.
const MANY: usize = 4;
const ROUTES: usize = 3;

/// One answer of the origin.
#[derive(Clone, Copy, Debug)]
pub(in crate::origin) struct Sample {
    /// Whose request it was.
    pub(in crate::origin) user: u64,
    /// The route of its URL.
    pub(in crate::origin) route: u64,
    pub(in crate::origin) ending: Ending,
    /// From the seat to the head.
    pub(in crate::origin) took: Duration,
}

/// What an answer says about how much the origin can take at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::origin) enum Ending {
    /// It did what it was asked for.
    Served,
    /// It refused because of its load: 503.
    Shed,
    /// It did not answer in time.
    Late,
    /// Nothing: the answer is about this client (429) or this URL (500), or there was no connection.
    Other,
}

/// A window under way.
pub(super) struct Tally {
    buckets: Box<[Bucket]>,
    /// Each as it was in its last window, and how many windows ago that was.
    last: Box<[(Bucket, u32)]>,
    /// Different routes that had a refusal, as many as matter.
    routes: [Option<u64>; ROUTES],
    calls: u32,
    /// How long the served ones took, in seconds, all together.
    busy: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    served: u32,
    shed: u32,
    late: u32,
    /// In seconds.
    times: [f32; KEPT],
}

/// A window that is over.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Seen {
    pub(super) served: u32,
    pub(super) shed: u32,
    pub(super) late: u32,
    /// The share that was refused, and that was late, of half of the groups at least.
    pub(super) shed_share: f64,
    pub(super) late_share: f64,
    /// The share that was refused of half of the groups at least, without those who were silent.
    pub(super) shed_now: f64,
    /// Refusals in a second, whoever's.
    pub(super) shed_rate: f64,
    /// The median time, in seconds, as the median group has it; zero if nothing was served.
    pub(super) median: f64,
    /// How many were being served at once, on average (Little's law).
    pub(super) busy: f64,
    pub(super) groups: usize,
    /// How many clients there were, as far as they can be told apart.
    pub(super) clients: usize,
    /// Different routes that had a refusal, as many as matter.
    pub(super) routes: usize,
}

impl Tally {
    pub(super) fn new() -> Tally {
        Tally {
            buckets: vec![Bucket::default(); BUCKETS].into(),
            last: vec![(Bucket::default(), SILENT); BUCKETS].into(),
            routes: [None; ROUTES],
            calls: 0,
            busy: 0.0,
        }
    }

    /// Samples that say something.
    pub(super) fn calls(&self) -> u32 {
        self.calls
    }

    pub(super) fn add(&mut self, sample: &Sample) {
        let place = usize::try_from(spread(sample.user) >> 58).unwrap_or(0);
        let Some(bucket) = self.buckets.get_mut(place) else { return };
        let seconds = sample.took.as_secs_f64();
        match sample.ending {
            Ending::Served => {
                bucket.keep(seconds);
                self.busy += seconds;
            }
            Ending::Shed => {
                bucket.shed = bucket.shed.saturating_add(1);
                let route = Some(sample.route);
                if !self.routes.contains(&route)
                    && let Some(free) = self.routes.iter_mut().find(|route| route.is_none())
                {
                    *free = route;
                }
            }
            Ending::Late => bucket.late = bucket.late.saturating_add(1),
            Ending::Other => return,
        }
        self.calls = self.calls.saturating_add(1);
    }

    /// What was seen in this time, and begins anew.
    pub(super) fn end(&mut self, elapsed: Duration) -> Seen {
        let now: Vec<&Bucket> = self.buckets.iter().filter(|bucket| bucket.calls() > 0).collect();
        let shed_now = lower_median(groups(&now).iter().map(|group| group.shed));
        let sum = |of: fn(&Bucket) -> u32| now.iter().map(|bucket| of(bucket)).fold(0, u32::saturating_add);
        let (seconds, clients) = (elapsed.as_secs_f64().max(1e-9), now.len());
        let (served, shed, late) = (sum(|one| one.served), sum(|one| one.shed), sum(|one| one.late));
        for (bucket, last) in self.buckets.iter_mut().zip(&mut self.last) {
            let silent = last.1.saturating_add(1);
            *last = if bucket.calls() > 0 { (std::mem::take(bucket), 0) } else { (last.0, silent) };
        }
        let present: Vec<&Bucket> = self.last.iter().filter(|last| last.1 < SILENT).map(|last| &last.0).collect();
        let groups = groups(&present);
        let seen = Seen {
            served,
            shed,
            late,
            shed_share: lower_median(groups.iter().map(|group| group.shed)),
            late_share: lower_median(groups.iter().map(|group| group.late)),
            shed_now,
            shed_rate: f64::from(shed) / seconds,
            median: lower_median(groups.iter().filter_map(|group| group.median)),
            busy: self.busy / seconds,
            groups: groups.len(),
            clients,
            routes: self.routes.iter().flatten().count(),
        };
        (self.routes, self.calls, self.busy) = ([None; ROUTES], 0, 0.0);
        seen
    }
}

/// Buckets in groups of about the same number of samples.
fn groups(buckets: &[&Bucket]) -> Vec<Group> {
    let weight: u32 = buckets.iter().map(|bucket| bucket.calls().min(GROUP)).sum();
    let count = usize::try_from(weight / GROUP).unwrap_or(BUCKETS).clamp(MANY, BUCKETS).min(buckets.len());
    (0..count).map(|first| Group::of(buckets.iter().skip(first).step_by(count).copied())).collect()
}

impl Seen {
    /// The share that was served, over all.
    pub(super) fn served_share(&self) -> f64 {
        let all = f64::from(self.served) + f64::from(self.shed) + f64::from(self.late);
        f64::from(self.served) / all.max(1.0)
    }

    /// Whether there are enough clients for it to be true of the origin.
    pub(super) fn has_many(&self) -> bool {
        self.groups >= MANY
    }

    /// Whether it is also not about one feature.
    pub(super) fn is_broad(&self) -> bool {
        self.has_many() && self.routes >= ROUTES
    }
}

impl Bucket {
    fn calls(&self) -> u32 {
        self.served.saturating_add(self.shed).saturating_add(self.late)
    }

    /// Counts one that was served, and keeps its time with the chance that every other of this bucket had.
    fn keep(&mut self, seconds: f64) {
        let number = u64::from(self.served);
        let place = if number < KEPT as u64 { number } else { spread(number) % (number + 1) };
        if let Some(kept) = usize::try_from(place).ok().and_then(|place| self.times.get_mut(place)) {
            #[expect(clippy::cast_possible_truncation, reason = "a time, of which a few digits matter")]
            let seconds = seconds as f32;
            *kept = seconds;
        }
        self.served = self.served.saturating_add(1);
    }

    fn kept(&self) -> &[f32] {
        &self.times[..usize::try_from(self.served).unwrap_or(KEPT).min(KEPT)]
    }
}

/// Some clients together.
struct Group {
    shed: f64,
    late: f64,
    /// Where those that were late count as longer than all that were served.
    median: Option<f64>,
}

impl Group {
    fn of<'a>(buckets: impl Iterator<Item = &'a Bucket>) -> Group {
        let (mut served, mut shed, mut late, mut times) = (0.0, 0.0, 0.0, Vec::new());
        for bucket in buckets {
            served += f64::from(bucket.served);
            shed += f64::from(bucket.shed);
            late += f64::from(bucket.late);
            times.extend_from_slice(bucket.kept());
        }
        times.sort_unstable_by(f32::total_cmp);
        let all = f64::max(served + shed + late, 1.0);
        let place = times.len() as f64 * (served + late) / (2.0 * f64::max(served, 1.0));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between zero and a length")]
        let place = (place as usize).min(times.len().saturating_sub(1));
        Group { shed: shed / all, late: late / all, median: times.get(place).map(|time| f64::from(*time)) }
    }
}

/// The lower of the two in the middle, if there are two: of two groups one cannot speak for both. Zero if there is none.
fn lower_median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// Scatters a number over all 64 bits.
fn spread(number: u64) -> u64 {
    let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    scattered ^ (scattered >> 32)
}
