//! The questions, and which figures decide each.

use super::{LeftOut, Question};
use crate::look::Look;

/// Which is the least, the first of equals.
fn least(values: &[f64]) -> usize {
    best(values, |a, b| a < b)
}

/// Which is the most, the first of equals.
fn most(values: &[f64]) -> usize {
    best(values, |a, b| a > b)
}

fn best(values: &[f64], is_better: impl Fn(f64, f64) -> bool) -> usize {
    let mut found = 0;
    for (at, value) in values.iter().enumerate() {
        if is_better(*value, values[found]) {
            found = at;
        }
    }
    found
}

/// Less, the same or more, where a tenth is the same.
fn compared(before: f64, after: f64) -> usize {
    if after < before * 0.9 { 0 } else { 1 + usize::from(after > before * 1.1) }
}

/// Ratios of pairs, the first by the second.
fn ratios(values: &[f64]) -> Vec<f64> {
    values.chunks_exact(2).map(|pair| pair[0] / pair[1]).collect()
}

pub(super) const QUESTIONS: &[Question] = &[
    Question {
        number: 1,
        text: "A thousand servers have a value in caches of their own, with jitter on its TTL. What makes the worst second at the database worse the most?",
        answers: &["twice as many servers", "all of them in step", "loads that take twice as long"],
        why: "More clients add, a slower origin waits, but synchrony multiplies: everybody in one second instead of a minute.",
        looks: &[
            Look::at("ttl-jitter", "each server, with jitter", "peak_per_second").with("servers=2000"),
            Look::at("ttl-jitter", "each server", "peak_per_second"),
            Look::at("ttl-jitter", "each server, with jitter", "peak_per_second").with("load=2s"),
        ],
        decide: most,
    },
    Question {
        number: 2,
        text: "A crowd of a thousand. Which of these does not line it up?",
        answers: &["a retry after 2 s", "the same TTL for all", "a retry after a random time", "a job at :00"],
        why: "A fixed delay keeps a crowd together, an equal TTL and a timetable bring it together; only chance parts it.",
        looks: &[
            Look::at("retry-storm", "every 2 s", "peak_after_first_100ms"),
            Look::at("ttl-jitter", "each server", "peak_per_second"),
            Look::at("retry-storm", "doubled + full jitter", "peak_after_first_100ms"),
            Look::at("cron", "at :00", "peak_per_second").with("instances=1000"),
        ],
        decide: least,
    },
    Question {
        number: 3,
        text: "A service lost most of its workers for ten seconds and stays down after it. You may change one thing at the clients. What brings users back?",
        answers: &["half the timeout", "jitter on the retries", "no retries"],
        why: "It is the number of retries that keeps it down, not their timing, and a shorter timeout makes more of them.",
        looks: &[
            Look::at("metastable", "three tries", "served_at_end_percent").with("timeout=500ms"),
            Look::at("metastable", "three tries, jitter", "served_at_end_percent"),
            Look::at("metastable", "one try", "served_at_end_percent"),
        ],
        decide: most,
    },
    Question {
        number: 4,
        text: "A crowd retries every 2 s. Now it doubles its delay after each try, without jitter. What does the graph of calls look like?",
        answers: &["lower spikes", "rarer spikes, as high as before", "the same"],
        why: "Everybody doubles by the same clock, so the crowd stays one.",
        looks: &[
            Look::at("retry-storm", "every 2 s", "peak_after_first_100ms"),
            Look::at("retry-storm", "doubled", "peak_after_first_100ms"),
            Look::at("retry-storm", "every 2 s", "calls"),
            Look::at("retry-storm", "doubled", "calls"),
        ],
        decide: |seen| match (compared(seen[0], seen[1]), compared(seen[2], seen[3])) {
            (0, _) => 0,
            (_, 0) => 1,
            _ => 2,
        },
    },
    Question {
        number: 5,
        text: "Ten thousand clients lose their connections at once. What spares the server the most dials that it has to drop?",
        answers: &["twice the cores", "dials spread over 25 s", "an accept queue five times as long"],
        why: "Capacity is for a rate, and an instant has none; spread over what the server needs anyway, nothing is dropped.",
        looks: &[
            Look::at("connection-storm", "at once", "dropped").with("cores=16"),
            Look::at("connection-storm", "spread", "dropped"),
            Look::at("connection-storm", "at once, long queue", "dropped"),
        ],
        decide: least,
    },
    Question {
        number: 6,
        text: "One key is a thousand times as popular as the others, and its node in a sharded store drowns. The store gets twice the nodes. How much is asked of the busiest node?",
        answers: &["half as much", "as much", "more"],
        why: "Nodes share keys, not requests: the key is still on one of them.",
        looks: &[
            Look::at("hot-shard", "one node has it", "busiest_per_second"),
            Look::at("hot-shard", "twice the nodes", "busiest_per_second"),
        ],
        decide: |seen| compared(seen[0], seen[1]),
    },
    Question {
        number: 7,
        text: "A flash sale: twenty times the traffic, and inventory that must not be stale. With which plan does nobody wait?",
        answers: &["a TTL and a mutex", "serve all stale while it is loaded", "warmed before, and refreshed early"],
        why: "A mutex makes readers wait at each expiry and a grace for all shows inventory that is gone; an early refresh does neither.",
        looks: &[
            Look::at("flash-sale", "B:", "waited"),
            Look::at("flash-sale", "B:", "stale_inventory"),
            Look::at("flash-sale", "stale for all", "waited"),
            Look::at("flash-sale", "stale for all", "stale_inventory"),
            Look::at("flash-sale", "D:", "waited"),
            Look::at("flash-sale", "D:", "stale_inventory"),
        ],
        // One stale answer is worse than any wait.
        decide: |seen| least(&seen.chunks_exact(2).map(|plan| plan[0] + 1e9 * plan[1]).collect::<Vec<_>>()),
    },
    Question {
        number: 8,
        text: "Which of these makes less work, and not only at better times?",
        answers: &["jitter on retries", "one load for all who want it", "a slot of its own for every cron job"],
        why: "Jitter and slots move calls; sharing leaves them out.",
        looks: &[
            Look::at("retry-wall", "backoff", "calls"),
            Look::at("retry-wall", "backoff +", "calls"),
            Look::at("hot-key", "naive", "calls"),
            Look::at("hot-key", "flight", "calls"),
            Look::at("cron", "at :00", "runs"),
            Look::at("cron", "own slot in the hour", "runs"),
        ],
        decide: |seen| most(&ratios(seen)),
    },
    Question {
        number: 9,
        text: "A burst of ten seconds' work, served in order, and clients who give up after 2 s: for seconds nobody is served. Twice the workers: is there still such a second?",
        answers: &["no", "yes"],
        why: "It is five seconds' work then, and still more than two: capacity moves the cliff and does not remove it.",
        looks: &[
            Look::at("bathtub", "oldest first", "worst_second_share"),
            Look::at("bathtub", "oldest first", "worst_second_share").with("workers=40"),
        ],
        decide: |seen| usize::from(seen[1] < 0.1),
    },
    Question {
        number: 10,
        text: "A hundred clients retry with exponential backoff and without jitter. How high is the highest spike after the first?",
        answers: &["100, as the first", "about half of it", "below a quarter of it"],
        why: "Backoff without jitter delays everybody by the same.",
        looks: &[Look::at("retry-wall", "backoff", "peak_after_first_ms")],
        decide: |seen| match seen[0] {
            high if high >= 75.0 => 0,
            middle if middle >= 25.0 => 1,
            _ => 2,
        },
    },
    Question {
        number: 11,
        text: "50 nodes read one hot key. Where does one load at a time spare the origin the most?",
        answers: &["in each node", "in a store that all nodes share", "it makes no difference"],
        why: "In each node there is one load for each node; a lease in the shared store makes it one for all.",
        looks: &[
            Look::at("fleet-stampede", "cache per node", "loads_before"),
            Look::at("fleet-stampede", "and a tier", "loads_before"),
        ],
        decide: |seen| match compared(seen[0], seen[1]) {
            0 => 1,
            1 => 2,
            _ => 0,
        },
    },
    Question {
        number: 12,
        text: "A value is fresh for 1 s, and its origin will be down for ten. How long a grace gets every reader through?",
        answers: &["2 s", "5 s", "12 s"],
        why: "As long as the outage and the time until the next load that works: what is shorter is errors, what is longer is age.",
        looks: &[
            Look::at("swr", "cache", "errors").with("grace=2s"),
            Look::at("swr", "cache", "errors").with("grace=5s"),
            Look::at("swr", "cache", "errors").with("grace=12s"),
        ],
        decide: least,
    },
    Question {
        number: 13,
        text: "60,000 clients are told at once that there is something new. Now each first waits for a moment of its own, within as long as the server needs for all. How much lower is its worst second?",
        answers: &["by less than half", "two to ten times", "more than ten times"],
        why: "The news is as quick as ever, and what is fetched because of it comes at the rate that the server has.",
        looks: &[
            Look::at("broadcast", "all at once", "peak_per_second").with("clients=60000"),
            Look::at("broadcast", "spread", "peak_per_second").with("clients=60000"),
        ],
        decide: |seen| match seen[0] / seen[1] {
            times if times > 10.0 => 2,
            times => usize::from(times >= 2.0),
        },
    },
    Question {
        number: 15,
        text: "Tokens live for 60 minutes and are refreshed with jitter. Which window never uses a token that has expired?",
        answers: &["60 minutes, 5 more or less", "60 minutes, 30 more or less", "anywhere from 30 to 59 minutes"],
        why: "Jitter may only be taken from the time that there is, never added to it.",
        looks: &[
            Look::at("token-refresh", "60 +- 5", "refreshed_late"),
            Look::at("token-refresh", "60 +- 30", "refreshed_late"),
            Look::at("token-refresh", "refresher", "refreshed_late"),
        ],
        decide: least,
    },
    Question {
        number: 16,
        text: "Ten thousand clients dial at once, again and again, and wait 2 s each time. The server makes 500 handshakes a second and can only change itself: its accept queue grows from 410 to 2,000. Who gets in?",
        answers: &["all, sooner", "all, later", "about a tenth, and then nobody"],
        why: "Who stands at the end of the queue has given up when it is its turn, so the server works for nobody.",
        looks: &[
            Look::at("connection-storm", "at once", "connected"),
            Look::at("connection-storm", "at once", "over_s"),
            Look::at("connection-storm", "at once, long queue", "connected"),
            Look::at("connection-storm", "at once, long queue", "over_s"),
        ],
        decide: |seen| if seen[2] < seen[0] { 2 } else { usize::from(seen[3] > seen[1]) },
    },
    Question {
        number: 17,
        text: "A user's call goes through three services to an origin that is down. Where are retries best stopped?",
        answers: &[
            "nowhere: each service tries three times",
            "each but the edge: only that tries three times",
            "at each, by a budget and a header that says it was retried",
        ],
        why: "Tries multiply by layers, and three at the edge are still three; a budget ends them when too much fails.",
        looks: &[
            Look::at("retry-chain", "three tries each", "at_origin"),
            Look::at("retry-chain", "only at the edge", "at_origin"),
            Look::at("retry-chain", "budgets and headers", "at_origin"),
        ],
        decide: least,
    },
    Question {
        number: 18,
        text: "Two tenants share a pool of connections, and what one of them calls takes 2 s instead of 10 ms. How long does the median call of the other take?",
        answers: &["as long as ever", "many times as long"],
        why: "The slow one holds the pool and the quick one stands in its line; with a bulkhead for each it does not notice.",
        looks: &[
            Look::at("bulkhead", "a bulkhead for each", "quick_p50_ms"),
            Look::at("bulkhead", "one pool", "quick_p50_ms"),
        ],
        decide: |seen| usize::from(seen[1] > 3.0 * seen[0]),
    },
    Question {
        number: 19,
        text: "Inventory must never be stale. Which of these breaks that?",
        answers: &[
            "a TTL and a mutex",
            "one grace for descriptions and inventory",
            "a grace for descriptions, none for inventory",
        ],
        why: "A grace is a promise to serve what is old; it belongs to what may be.",
        looks: &[
            Look::at("flash-sale", "B:", "stale_inventory"),
            Look::at("flash-sale", "stale for all", "stale_inventory"),
            Look::at("flash-sale", "C:", "stale_inventory"),
        ],
        decide: most,
    },
    Question {
        number: 20,
        text: "Full jitter instead of plain exponential backoff, for a hundred clients: how long does each wait on average?",
        answers: &["longer", "as long", "shorter"],
        why: "It draws from zero to what the other waits, which is half of it on average; an article says that it does not lower latency.",
        looks: &[
            Look::at("retry-wall", "backoff", "mean_wait_ms"),
            Look::at("retry-wall", "backoff +", "mean_wait_ms"),
        ],
        decide: |seen| 2 - compared(seen[0], seen[1]),
    },
    Question {
        number: 21,
        text: "A thousand consumers poll: in step, or each at its own time. Which metric shows the difference best?",
        answers: &["polls a minute", "how long a job waits", "the busiest 10 ms"],
        why: "A herd has the same sums as a crowd that is none; it shows where time is cut finely.",
        looks: &[
            Look::at("polling", "in step", "polls"),
            Look::at("polling", "jittered", "polls"),
            Look::at("polling", "in step", "mean_wait_ms"),
            Look::at("polling", "jittered", "mean_wait_ms"),
            Look::at("polling", "in step", "peak_per_10_ms"),
            Look::at("polling", "jittered", "peak_per_10_ms"),
        ],
        decide: |seen| most(&ratios(seen)),
    },
    Question {
        number: 22,
        text: "800 callers want one key, its origin fails, and a mutex lets one of them ask at a time. One mutex for all becomes one on each of ten nodes. How long does the last caller wait?",
        answers: &["less than a quarter as long", "nearly as long", "longer"],
        why: "One lock is the point at which everybody meets; ten are ten shorter lines, and the origin is asked by ten at a time.",
        looks: &[
            Look::at("stampede", "mutex", "max_if_origin_fails_ms").with("nodes=1"),
            Look::at("stampede", "mutex", "max_if_origin_fails_ms").with("nodes=10"),
        ],
        decide: |seen| match seen[1] / seen[0] {
            share if share < 0.25 => 0,
            share => 1 + usize::from(share > 1.0),
        },
    },
    Question {
        number: 23,
        text: "50 servers find their hottest key by themselves and tell it by a hash, so that no dashboard names a user. It is the same key. How many different hashes are there?",
        answers: &["one, since it is one key", "a few", "as many as servers"],
        why: "Each hashes with a secret of its own: it can say which of its keys it is, and nobody can look up or follow a user.",
        looks: &[
            Look::at("hot-shard", "hot keys kept longer", "named_by"),
            Look::at("hot-shard", "hot keys kept longer", "names"),
        ],
        decide: |seen| match seen[1] {
            names if names <= 1.0 => 0,
            names => 1 + usize::from(names >= seen[0]),
        },
    },
    Question {
        number: 24,
        text: "Twenty callers share a load that takes 30 s; nineteen have a second, and deadlines of their own. How long does the median caller wait?",
        answers: &["30 s, as the load", "1 s, as it said", "not at all"],
        why: "A follower waits for the load or for its own deadline, whichever is first, and the load goes on for the others.",
        looks: &[
            Look::at("slow-leader", "everybody waits", "p50_ms"),
            Look::at("slow-leader", "own deadlines", "p50_ms"),
        ],
        decide: |seen| match seen[1] {
            wait if wait > 2_000.0 => 0,
            wait if wait > 500.0 => 1,
            _ => 2,
        },
    },
    Question {
        number: 25,
        text: "A cache is lost under full traffic. What is the least that brings all users back?",
        answers: &[
            "nothing, it fills again by itself",
            "one load for each key",
            "and a limit on loads",
            "and filling it before there is traffic",
        ],
        why: "Without it the database works on keys that it has been asked for a hundred times; the rest decides how it feels meanwhile.",
        looks: &[
            Look::at("cold-cache", "check, then load", "served_at_end_percent"),
            Look::at("cold-cache", "cache", "served_at_end_percent"),
            Look::at("cold-cache", "cache, load_limit", "served_at_end_percent"),
            Look::at("cold-cache", "cache, limit, filled", "served_at_end_percent"),
        ],
        decide: |seen| seen.iter().position(|served| *served >= 99.0).unwrap_or(0),
    },
    Question {
        number: 26,
        text: "A service becomes twice as slow for everybody, and clients hedge whatever is slower than usual. What becomes of their p99?",
        answers: &["lower", "the same", "many times as high"],
        why: "When all are slow a second attempt is a second load; a budget notices that too many are hedged, and stops.",
        looks: &[
            Look::at("hedging", "without", "slow_p99_ms"),
            Look::at("hedging", "whatever is slow, 30 ms", "slow_p99_ms"),
            Look::at("hedging", "with a budget", "slow_p99_ms"),
        ],
        decide: |seen| compared(seen[0], seen[1]),
    },
    Question {
        number: 27,
        text: "A flag service tells 60,000 clients that a flag has changed. Three things are added, one after another. Which of them lowers its worst second the most?",
        answers: &[
            "a moment of its own for each client",
            "clients that keep what they had",
            "only what has changed, ten times cheaper",
        ],
        why: "Only the first parts the crowd. The second is for the clients, and the third is spent on being quicker.",
        looks: &[
            Look::at("broadcast", "all at once", "peak_per_second").with("clients=60000"),
            Look::at("broadcast", "spread", "peak_per_second").with("clients=60000"),
            Look::at("broadcast", "spread, last known good", "peak_per_second").with("clients=60000"),
            Look::at("broadcast", "and a delta", "peak_per_second").with("clients=60000"),
        ],
        decide: |seen| most(&[seen[0] / seen[1], seen[1] / seen[2], seen[2] / seen[3]]),
    },
    Question {
        number: 28,
        text: "A thousand caches expire together every five minutes. The TTL becomes ten minutes. How high is the spike?",
        answers: &["lower", "as high", "higher"],
        why: "The TTL is the synchronizer: longer makes the spike rarer and leaves its height.",
        looks: &[
            Look::at("ttl-jitter", "each server", "peak_per_second"),
            Look::at("ttl-jitter", "each server", "peak_per_second").with("ttl=10m"),
        ],
        decide: |seen| compared(seen[0], seen[1]),
    },
    Question {
        number: 29,
        text: "Which of these never recovers?",
        answers: &[
            "a stampede whose callers wait",
            "a stampede whose callers give up and try again",
            "callers who give up and try again, with one load for all",
        ],
        why: "Who gives up leaves its work at the origin and adds another; with one load for all there is nothing to add.",
        looks: &[
            Look::at("cascade", "check, then load", "served_at_end_percent"),
            Look::at("cascade", "... timeout, 3 tries", "served_at_end_percent"),
            Look::at("cascade", "cache, timeout, 3 tries", "served_at_end_percent"),
        ],
        decide: least,
    },
];

pub(super) const LEFT_OUT: &[LeftOut] = &[
    LeftOut {
        number: 14,
        about: "how far a leader's failure reaches",
        why: "waits for coordination, whose election and watches it is about",
    },
    LeftOut { number: 30, about: "a herd, or only load", why: "waits for the detector, which tells them apart" },
];
