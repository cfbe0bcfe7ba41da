//! Every attack by its name, in the order of the guide.

mod admin;
mod bytes;
mod failing;
mod flood;
mod learned;
mod recovery;
mod sharing;
mod slow;
mod spam;

use std::pin::Pin;

use crate::{
    report::{Check, Findings},
    world::{Context, Form, Place},
};

type Run = fn(Context, Place) -> Pin<Box<dyn Future<Output = Vec<Check>> + Send>>;

/// What a stranger tries.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    places: &'static [Place],
    run: Run,
}

/// Good users at other addresses than the attacker, and at the same one.
const BOTH: &[Place] = &[Place::Apart, Place::Together];
/// Where the address makes no difference, or where one address is what is shared out fairly.
const APART: &[Place] = &[Place::Apart];

impl Attack {
    pub(crate) async fn run(&self, context: &Context) -> Vec<Check> {
        let run = |place: Place| (self.run)(context.clone(), place);
        match (self.places, context.form) {
            // The loads are small, and a test has little time.
            ([first, second], Form::Short) => {
                let (mut first, second) = tokio::join!(run(*first), run(*second));
                first.extend(second);
                first
            }
            (places, _) => {
                let mut checks = Vec::new();
                for place in places {
                    checks.extend(run(*place).await);
                }
                checks
            }
        }
    }
}

/// One attack of the list: the places, its module and function, and what it does.
macro_rules! attack {
    ($places:ident $module:ident::$name:ident, $what:literal) => {
        Attack {
            name: stringify!($name),
            what: $what,
            places: $places,
            run: |context, place| {
                Box::pin(async move {
                    let mut findings = Findings::new(stringify!($name), place);
                    $module::$name(&context, place, &mut findings).await;
                    findings.checks
                })
            },
        }
    };
}

pub(crate) const ATTACKS: &[Attack] = &[
    attack!(BOTH failing::poisoned_failure, "a header that the origin chokes on, at everybody's URLs"),
    attack!(BOTH failing::poisoned_body, "a header that makes the origin break a body off, at the URL of a herd"),
    attack!(BOTH failing::status_429_of_one_client, "50/s that the origin answers with 429"),
    attack!(BOTH failing::fast_503_of_one_feature, "50/s for a feature that answers with a fast 503"),
    attack!(BOTH failing::errors_500_on_an_idle_proxy, "20/s that fail while nobody else is there, then 60 misses at once"),
    attack!(BOTH failing::failing_url, "100/s for a URL that fails for everybody"),
    attack!(BOTH failing::failing_herd, "a herd of 200 at a URL that fails"),
    attack!(BOTH failing::broken_body_herd, "a herd of 50 at a page whose body breaks off"),
    attack!(BOTH failing::cpdos_statuses, "a header that makes the origin answer 400, 413, 431 or 501, labelled as cacheable"),
    attack!(BOTH failing::fallback_for_others, "a header that the origin chokes on, where failures are answered with a default"),
    attack!(APART failing::os_error_text, "reading what the proxy says while the origin is down"),
    attack!(BOTH learned::learned_private_by_404, "unlabelled 404s beside a page"),
    attack!(BOTH learned::learned_private_by_neighbours, "private pages beside a page"),
    attack!(BOTH learned::learned_private_by_failures, "failing pages beside a page"),
    attack!(BOTH slow::slow_uploads, "300 uploads at 600 bytes a second"),
    attack!(BOTH slow::slow_readers_shared, "200 readers of 4 MB each, cacheable, at 2 KB a second"),
    attack!(BOTH slow::slow_readers_private, "200 readers of 4 MB each, private, at 2 KB a second, 64 seats"),
    attack!(BOTH slow::slowloris_heads, "300 connections that send a byte of a head now and then"),
    attack!(BOTH flood::cancel_spam, "requests that are cancelled at once, 64 seats"),
    attack!(BOTH flood::connection_flood_300, "300 connections, each asking for something slow without end"),
    attack!(APART flood::upgrade_flood, "as many WebSockets as one address gets, silent and talking, opened again and again"),
    attack!(BOTH flood::cache_busting, "50/s, each with a query of its own"),
    attack!(BOTH flood::compress_flood, "50/s for pages of 100 KB that are compressed, each with a query of its own"),
    attack!(BOTH flood::vary_explosion, "50/s, each with a User-Agent of its own, at a page that varies by it"),
    attack!(BOTH flood::range_abuse, "50/s, each for hundreds of overlapping ranges"),
    attack!(APART flood::shedding_origin, "twice as many requests as an origin bears that sheds by fast 503s"),
    attack!(BOTH spam::no_store_spam, "50/s at a hot page with Cache-Control: no-store, no-cache, max-age=0"),
    attack!(BOTH spam::method_spam_invalidates, "50/s of OPTIONS, PURGE, POST and unknown methods at a hot page"),
    attack!(APART sharing::cache_deception, "a page of a victim under a path that looks cacheable"),
    attack!(APART sharing::identity_headers, "header fields that name a user to an origin that trusts its proxy"),
    attack!(APART sharing::private_bodies, "a herd of users at pages that are for one user each"),
    attack!(BOTH sharing::conditions_of_the_first, "ranges and conditions of an attacker who asks first, before a herd"),
    attack!(APART sharing::forged_forwarded_for, "header fields that name another client, host or URL"),
    attack!(APART sharing::hop_by_hop, "Connection: Authorization, and other fields for one hop only"),
    attack!(APART bytes::request_framing, "requests that two parsers could read in two ways"),
    attack!(APART bytes::request_targets, "targets, hosts and fragments that two parsers could read in two ways"),
    attack!(APART bytes::upgrade_smuggling, "an upgrade that the origin does not grant, and requests behind it"),
    attack!(APART bytes::response_splitting, "an origin whose responses could be read in two ways"),
    attack!(APART bytes::fat_get, "GET with a body"),
    attack!(APART bytes::unread_body, "a body that the origin does not read, and takes for the next request"),
    attack!(BOTH bytes::bad_chunk, "50/s uploads with a chunk that is none"),
    attack!(APART bytes::error_pages_echo, "looking for one's own bytes in error pages"),
    attack!(APART bytes::request_loop, "a proxy whose origin is the proxy itself"),
    attack!(APART admin::admin_dns_rebinding, "a browser that was led to the admin port under another name"),
    attack!(APART admin::admin_via_data_port, "metrics, purges and health asked for at the port of clients"),
    attack!(APART recovery::slow_recovery, "an origin that refused for 10 s is back; three proxies in front of it"),
];
