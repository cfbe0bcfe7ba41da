//! What can be turned in a scenario.
//!
//! An experiment whose numbers are hidden in its code settles no argument: the first question is always "and with twice the
//! clients?". So a scenario declares its numbers, each with what it means, its value and its range, and that declaration is what
//! the code reads, what the report prints, and what `--set` changes.

use std::{
    error::Error,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use herdproof_proxy::settings::{parse_time, show_time};

use crate::{
    log::Tap,
    nearest::nearest,
    runs::{Busy, Watch},
};

/// A number that a scenario is run with.
#[derive(Clone, Debug, PartialEq)]
pub struct Knob {
    /// What it is called.
    pub name: &'static str,
    /// What it means.
    pub what: &'static str,
    /// What it is unless it is changed. The claims are about this.
    pub default: Value,
    /// The least that it can be.
    pub least: Value,
    /// The most that it can be.
    pub most: Value,
}

/// What a knob can be turned to.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum Value {
    /// A number of things.
    Count(u64),
    /// A time.
    Time(Duration),
    /// A share, a factor, a rate.
    Number(f64),
}

/// What a run is made with: a seed, and what was changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// What everything random follows from.
    pub seed: u64,
    changes: Vec<(&'static str, Value)>,
    /// Without claims that take runs of their own.
    bare: bool,
    /// Which arms are listened to, by their places, and where to.
    taps: Vec<(usize, Tap)>,
    /// On how many threads arms are run; as many as there are processors, unless it is said.
    threads: Option<usize>,
    /// Who wants to know how far it is.
    follower: Follower,
}

/// How many of the arms of a run are done, as far as it is known how many there are. Shared with who runs it.
#[derive(Debug, Default)]
pub struct ArmsDone {
    done: AtomicUsize,
    all: AtomicUsize,
}

/// Who wants to know how far a run is, if anybody does.
#[derive(Clone, Debug, Default)]
struct Follower(Option<Arc<ArmsDone>>);

/// The same run, whoever looks on.
impl PartialEq for Follower {
    fn eq(&self, _: &Follower) -> bool {
        true
    }
}

/// Why a knob cannot be turned like that.
#[derive(Clone, Debug, PartialEq)]
pub enum BadSetting {
    /// Not of the form `name=value`.
    NoValue(String),
    /// There is no such knob.
    Unknown {
        /// What was asked for.
        name: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
        /// Those that there are.
        known: Vec<&'static str>,
    },
    /// Not a value of the knob's kind, or none that it can have.
    Impossible {
        /// What was said.
        said: String,
        /// Which knob it was said of.
        knob: Knob,
    },
}

/// What a knob's field can be.
pub(crate) trait Turned: Sized {
    fn value(self) -> Value;
    fn of(value: Value) -> Option<Self>;
}

/// Declares the numbers of a scenario: `Knobs::all` for the catalogue, `Knobs::of` for the run.
macro_rules! knobs {
    ($($(#[doc = $what:literal])+ $name:ident: $kind:ty = $default:expr, $range:expr;)+) => {
        #[derive(Clone, Copy, Debug)]
        struct Knobs {
            $($(#[doc = $what])+ $name: $kind,)+
        }

        impl Knobs {
            fn all() -> Vec<$crate::knob::Knob> {
                vec![$({
                    let range: std::ops::RangeInclusive<$kind> = $range;
                    $crate::knob::Knob {
                        name: stringify!($name),
                        what: concat!($($what),+).trim_ascii(),
                        default: <$kind as $crate::knob::Turned>::value($default),
                        least: $crate::knob::Turned::value(*range.start()),
                        most: $crate::knob::Turned::value(*range.end()),
                    }
                }),+]
            }

            fn of(settings: &$crate::knob::Settings) -> Knobs {
                Knobs { $($name: settings.get(stringify!($name)).unwrap_or($default),)+ }
            }
        }
    };
}
pub(crate) use knobs;

impl Settings {
    /// With nothing changed.
    pub fn new(seed: u64) -> Settings {
        Settings {
            seed,
            changes: Vec::new(),
            bare: false,
            taps: Vec::new(),
            threads: None,
            follower: Follower::default(),
        }
    }

    /// The same with another seed.
    #[must_use]
    pub fn with_seed(&self, seed: u64) -> Settings {
        Settings { seed, ..self.clone() }
    }

    /// Whether something is not as it is in the catalogue.
    pub fn is_changed(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Changes one of these knobs, by a text such as `clients=1000` or `timeout=2s`.
    pub fn set(&mut self, knobs: &[Knob], text: &str) -> Result<(), BadSetting> {
        let (name, value) = text.split_once('=').ok_or_else(|| BadSetting::NoValue(text.to_owned()))?;
        let name = name.trim().replace('-', "_");
        let Some(knob) = knobs.iter().find(|knob| knob.name == name) else {
            let known: Vec<_> = knobs.iter().map(|knob| knob.name).collect();
            return Err(BadSetting::Unknown { nearest: nearest(&name, known.iter().copied()), name, known });
        };
        let value = knob
            .read(value.trim())
            .ok_or_else(|| BadSetting::Impossible { said: value.trim().to_owned(), knob: knob.clone() })?;
        self.turn(knob, value);
        Ok(())
    }

    /// Changes this knob to a value that it can have.
    pub(crate) fn turn(&mut self, knob: &Knob, value: Value) {
        self.changes.retain(|(changed, _)| *changed != knob.name);
        if value != knob.default {
            self.changes.push((knob.name, value));
        }
    }

    /// The same for one of many runs of which only the figures of its arms are wanted. A scenario need not make what takes runs of
    /// its own, such as a claim about a thousand seeds.
    #[must_use]
    pub(crate) fn bare(&self) -> Settings {
        Settings { bare: true, ..self.clone() }
    }

    /// Whether only the figures of the arms are wanted.
    pub(crate) fn is_bare(&self) -> bool {
        self.bare
    }

    /// Whether this one is.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.changed(name).is_some()
    }

    /// The same for a run of which the requests of these arms are written down.
    pub(crate) fn listening(&self, taps: Vec<(usize, Tap)>) -> Settings {
        Settings { taps, ..self.clone() }
    }

    /// Where the requests of this arm are written down: nowhere, unless it is one that is listened to.
    pub(crate) fn tap(&self, arm: usize) -> Tap {
        self.taps.iter().find(|(wanted, _)| *wanted == arm).map(|(_, tap)| tap.taken()).unwrap_or_default()
    }

    /// Runs all arms, on all processors that are free. Each is told its place and its way; what they came to is in their order,
    /// whichever was first.
    pub(crate) fn arms<W: Sync, R: Send, const N: usize>(
        &self,
        ways: &[W; N],
        run: impl Fn(usize, &W) -> R + Sync,
    ) -> [R; N] {
        let places: [usize; N] = std::array::from_fn(|arm| arm);
        let told = |count: fn(&ArmsDone) -> &AtomicUsize, more| {
            self.follower.0.iter().for_each(|arms| _ = count(arms).fetch_add(more, Relaxed));
        };
        told(|arms| &arms.all, N);
        let work = |arm: &usize| {
            let result = run(*arm, &ways[*arm]);
            told(|arms| &arms.done, 1);
            result
        };
        let watch = Watch::default();
        let results = match self.threads {
            Some(threads) => watch.each_beside(Busy::forced(threads.saturating_sub(1)), &places, work),
            None => watch.each(&places, work),
        };
        let mut results = results.into_iter().flatten();
        std::array::from_fn(|_| results.next().expect("nobody stops it"))
    }

    /// The same for a run that somebody follows.
    #[must_use]
    pub fn followed(&self, by: &Arc<ArmsDone>) -> Settings {
        Settings { follower: Follower(Some(Arc::clone(by))), ..self.clone() }
    }

    /// The same for a run whose arms are spread over so many threads.
    #[cfg(test)]
    pub(crate) fn on_threads(&self, threads: usize) -> Settings {
        Settings { threads: Some(threads), ..self.clone() }
    }

    /// What was changed, as it is set.
    pub(crate) fn changes(&self) -> Vec<String> {
        self.changes.iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    /// What this knob is turned to.
    pub(crate) fn value(&self, knob: &Knob) -> Value {
        self.changed(knob.name).unwrap_or(knob.default)
    }

    /// What it is turned to, if it was.
    pub(crate) fn get<T: Turned>(&self, name: &str) -> Option<T> {
        self.changed(name).and_then(T::of)
    }

    fn changed(&self, name: &str) -> Option<Value> {
        self.changes.iter().find(|(changed, _)| *changed == name).map(|(_, value)| *value)
    }
}

impl ArmsDone {
    /// How many are done, and of how many; of none, while that is not known.
    pub fn so_far(&self) -> (usize, usize) {
        (self.done.load(Relaxed), self.all.load(Relaxed))
    }
}

impl Knob {
    /// A value of this knob's kind and within its range.
    pub(crate) fn read(&self, text: &str) -> Option<Value> {
        let value = match self.default {
            Value::Count(_) => Value::Count(text.replace('_', "").parse().ok()?),
            Value::Time(_) => Value::Time(parse_time(text).ok()?),
            Value::Number(_) => Value::Number(text.parse().ok()?),
        };
        (self.least <= value && value <= self.most).then_some(value)
    }
}

impl Turned for u64 {
    fn value(self) -> Value {
        Value::Count(self)
    }

    fn of(value: Value) -> Option<u64> {
        if let Value::Count(count) = value { Some(count) } else { None }
    }
}

impl Turned for u32 {
    fn value(self) -> Value {
        Value::Count(self.into())
    }

    fn of(value: Value) -> Option<u32> {
        u64::of(value).and_then(|count| count.try_into().ok())
    }
}

impl Turned for usize {
    fn value(self) -> Value {
        Value::Count(self as u64)
    }

    fn of(value: Value) -> Option<usize> {
        u64::of(value).and_then(|count| count.try_into().ok())
    }
}

impl Turned for f64 {
    fn value(self) -> Value {
        Value::Number(self)
    }

    fn of(value: Value) -> Option<f64> {
        if let Value::Number(number) = value { Some(number) } else { None }
    }
}

impl Turned for Duration {
    fn value(self) -> Value {
        Value::Time(self)
    }

    fn of(value: Value) -> Option<Duration> {
        if let Value::Time(time) = value { Some(time) } else { None }
    }
}

/// As it is typed.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Count(count) => f.pad(&count.to_string()),
            Value::Time(time) => f.pad(&show_time(*time)),
            Value::Number(number) => f.pad(&number.to_string()),
        }
    }
}

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadSetting::NoValue(text) => {
                write!(f, "{text:?} sets nothing: it takes a name and a value, as in clients=100")
            }
            BadSetting::Unknown { name, known, .. } if known.is_empty() => {
                write!(f, "{name:?} cannot be set: this scenario has no parameters to set")
            }
            BadSetting::Unknown { name, nearest: Some(nearest), .. } => {
                write!(f, "there is no parameter called {name:?}; did you mean {nearest:?}?")
            }
            BadSetting::Unknown { name, nearest: None, known } => {
                write!(f, "there is no parameter called {name:?}; there are {}", known.join(", "))
            }
            BadSetting::Impossible { said, knob: Knob { name, default, least, most, .. } } => {
                let kind = match default {
                    Value::Count(_) => "a whole number",
                    Value::Time(_) => "a time such as 250ms or 2s",
                    Value::Number(_) => "a number",
                };
                write!(f, "{name} cannot be {said:?}: it is {kind} from {least} to {most}")
            }
        }
    }
}

impl Error for BadSetting {}

#[cfg(test)]
mod tests {
    use super::*;

    knobs! {
        /// How many.
        clients: u64 = 100, 1..=1_000;
        /// How long they wait,
        /// each of them.
        timeout: Duration = Duration::from_secs(2), Duration::from_millis(1)..=Duration::from_secs(60);
        /// How many of them fail.
        share: f64 = 0.5, 0.0..=1.0;
    }

    fn set(text: &str) -> Result<Knobs, String> {
        let mut settings = Settings::new(1);
        settings.set(&Knobs::all(), text).map_err(|error| error.to_string())?;
        Ok(Knobs::of(&settings))
    }

    #[test]
    fn what_is_not_set_is_as_declared() {
        let Knobs { clients, timeout, share } = Knobs::of(&Settings::new(1));
        assert_eq!((clients, timeout, share.to_string()), (100, Duration::from_secs(2), "0.5".into()));
        assert_eq!(Knobs::all()[1].what, "How long they wait, each of them.");
    }

    #[test]
    fn what_is_set_is_what_the_code_reads() {
        assert_eq!(set("clients=1_000").unwrap().clients, 1_000);
        assert_eq!(set("timeout = 250ms").unwrap().timeout, Duration::from_millis(250));
        assert!((set("share=0.25").unwrap().share - 0.25).abs() < f64::EPSILON);
    }

    #[test]
    fn the_last_word_counts_and_the_default_is_no_change() {
        let mut settings = Settings::new(1);
        for text in ["clients=5", "clients=7"] {
            settings.set(&Knobs::all(), text).unwrap();
        }
        assert_eq!((Knobs::of(&settings).clients, settings.is_changed()), (7, true));
        settings.set(&Knobs::all(), "clients=100").unwrap();
        assert!(!settings.is_changed());
    }

    #[test]
    fn who_follows_a_run_hears_of_every_arm() {
        let arms = Arc::new(ArmsDone::default());
        let settings = Settings::new(1).on_threads(1).followed(&arms);
        assert_eq!(arms.so_far(), (0, 0));
        let seen = settings.arms(&["a", "b", "c"], |_, _| arms.so_far());
        assert_eq!((seen, arms.so_far()), ([(0, 3), (1, 3), (2, 3)], (3, 3)));
        assert_eq!(settings, Settings::new(1).on_threads(1), "it is the same run");
    }

    #[test]
    fn what_cannot_be_is_told_what_could() {
        let said = |text| set(text).unwrap_err();
        assert_eq!(said("clients=0"), "clients cannot be \"0\": it is a whole number from 1 to 1000");
        assert_eq!(said("timeout=soon"), "timeout cannot be \"soon\": it is a time such as 250ms or 2s from 1ms to 1m");
        assert_eq!(said("share=NaN"), "share cannot be \"NaN\": it is a number from 0 to 1");
        assert_eq!(said("client=5"), "there is no parameter called \"client\"; did you mean \"clients\"?");
        assert_eq!(said("zzz=5"), "there is no parameter called \"zzz\"; there are clients, timeout, share");
        assert_eq!(said("clients"), "\"clients\" sets nothing: it takes a name and a value, as in clients=100");
    }
}
