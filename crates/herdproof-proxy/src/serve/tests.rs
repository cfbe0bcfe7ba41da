//! The proxy under attack, on real sockets: clients, the listener, the proxy, and an origin that does as it is told.
//!
//! Nothing here depends on how long anything takes. What has to happen in an order is held until it may: the origin answers
//! when a test says so, and a herd is let go when all of it is aboard. A response that has to be old comes with an `Age`.

mod chance;
mod changes;
mod clients;
mod compress;
mod counted;
mod deception;
mod failing;
mod fair;
mod fallbacks;
mod herds;
mod insisting;
mod memory;
mod others;
mod parts;
mod poisoning;
mod requests;
mod sharing;
mod stale;
mod targeted;
mod trailers;
mod turned;
#[cfg(unix)]
mod unix;
mod upgrades;
mod uploads;
mod world;
