//! Every attack by its name, in the order of the guide.

mod failing;

use std::pin::Pin;

use crate::{report::Check, world::Context};

type Run = fn(Context) -> Pin<Box<dyn Future<Output = Vec<Check>> + Send>>;

/// What a stranger tries.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) run: Run,
}

/// One attack of the list: its module and function, and what it does.
macro_rules! attack {
    ($module:ident::$name:ident, $what:literal) => {
        Attack {
            name: stringify!($name),
            what: $what,
            run: |context| {
                Box::pin(async move {
                    let mut findings = crate::report::Findings::new(stringify!($name));
                    $module::$name(&context, &mut findings).await;
                    findings.checks
                })
            },
        }
    };
}

pub(crate) const ATTACKS: &[Attack] = &[
    attack!(failing::status_429_of_one_client, "50 requests a second that the origin answers with 429"),
    attack!(failing::fast_503_of_one_feature, "50 requests a second for a feature that answers with a fast 503"),
    attack!(failing::errors_500_on_an_idle_proxy, "500s at 20 a second while nobody else is there, then 60 misses at once"),
    attack!(failing::poisoned_failure, "a header that the origin chokes on, at the URLs of everybody"),
    attack!(failing::failing_url, "a URL that fails for everybody, asked for 100 times a second"),
    attack!(failing::failing_herd, "a herd of 200 at a URL that fails"),
];
