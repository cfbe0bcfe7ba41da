//! The head of a request on its way: nothing that is about one hop or that others said about the client survives.
#![no_main]

use herdproof_fuzz::headers;
use herdproof_proxy::{
    key::Scheme,
    policy::hop::{self, Forwarder},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut head = headers(data);
    let _ = (hop::is_framed_twice(&head), hop::loops(&head, "herdproof"));
    hop::strip(&mut head);
    for name in ["connection", "keep-alive", "te", "transfer-encoding", "upgrade", "proxy-connection"] {
        assert!(!head.contains_key(name), "{name}");
    }
    let by = Forwarder { client: [192, 0, 2, 7].into(), scheme: Scheme::Http, authority: "a.example", name: "herdproof" };
    hop::forward(&mut head, &by);
    assert_eq!(head.get_all("x-forwarded-host").iter().collect::<Vec<_>>(), ["a.example"]);
    assert!(!head.contains_key("x-original-url") && !head.contains_key("forwarded"));
    assert!(hop::loops(&head, "herdproof"));
});
