//! Events as the `metrics` crate has them, for services that export with it already.

use std::fmt;

use metrics::{Counter, Gauge, Histogram, Unit};

use super::{Event, Kind, Metric, Observer};

/// Tells the recorder of the [`metrics`] crate what happens, under the names of [`Metric`].
///
/// It asks for its counters once, when it is made: install the recorder before.
///
/// ```
/// use herdproof::{Env, event::Facade};
///
/// let env = Env::system().observed_by(Facade::new());
/// # let _ = env;
/// ```
pub struct Facade(Vec<Handle>);

enum Handle {
    Counter(Counter),
    Gauge(Gauge),
    Time(Histogram),
}

impl Facade {
    /// With the recorder that is installed now.
    #[expect(clippy::new_without_default, reason = "it depends on when it is made")]
    pub fn new() -> Facade {
        let handles = Metric::ALL.iter().map(|metric| match metric.kind() {
            Kind::Counter => {
                metrics::describe_counter!(metric.name(), metric.help());
                Handle::Counter(metrics::counter!(metric.name()))
            }
            Kind::Gauge => {
                metrics::describe_gauge!(metric.name(), metric.help());
                Handle::Gauge(metrics::gauge!(metric.name()))
            }
            Kind::Time => {
                metrics::describe_histogram!(metric.name(), Unit::Seconds, metric.help());
                Handle::Time(metrics::histogram!(metric.name()))
            }
        });
        Facade(handles.collect())
    }
}

impl Observer for Facade {
    fn observe(&self, event: &Event) {
        event.moves(|metric, n| match &self.0[metric as usize] {
            Handle::Counter(counter) => counter.increment(n),
            Handle::Gauge(gauge) => gauge.set(n as f64),
            Handle::Time(times) => times.record(n as f64 / 1e9),
        });
    }
}

impl fmt::Debug for Facade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Facade")
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashMap,
        sync::{
            Arc, Mutex,
            atomic::{AtomicU64, Ordering},
        },
        time::Duration,
    };

    use metrics::{HistogramFn, Key, KeyName, Metadata, Recorder, SharedString};

    use super::*;

    #[derive(Default)]
    struct Kept(Mutex<HashMap<String, Arc<AtomicU64>>>);

    impl Kept {
        fn of(&self, name: &str) -> Arc<AtomicU64> {
            Arc::clone(self.0.lock().unwrap().entry(name.into()).or_default())
        }
    }

    struct Last(Arc<AtomicU64>);

    impl HistogramFn for Last {
        fn record(&self, value: f64) {
            self.0.store(value.to_bits(), Ordering::Relaxed);
        }
    }

    impl Recorder for Kept {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.of(key.name()))
        }
        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.of(key.name()))
        }
        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(Arc::new(Last(self.of(key.name()))))
        }
    }

    #[test]
    fn the_recorder_counts_the_same_under_the_same_names() {
        let recorder = Kept::default();
        let facade = metrics::with_local_recorder(&recorder, Facade::new);
        assert_eq!(recorder.0.lock().unwrap().len(), Metric::ALL.len());
        facade.observe(&Event::CacheEvicted { entries: 3 });
        facade.observe(&Event::CacheEvicted { entries: 4 });
        facade.observe(&Event::QueueDepth(9));
        facade.observe(&Event::QueueDepth(2));
        let get = |metric: Metric| recorder.of(metric.name()).load(Ordering::Relaxed);
        assert_eq!(get(Metric::CacheEvictions), 7);
        assert_eq!(get(Metric::QueueDepth), 2f64.to_bits());
        facade.observe(&Event::CacheStale { age: Duration::from_millis(1_500) });
        assert_eq!(get(Metric::CacheStaleAge), 1.5f64.to_bits(), "in seconds");
        assert_eq!(get(Metric::CacheHits), 0);
    }
}
