//! Where the origin is said to be, and where it is.

use super::*;

#[test]
fn what_is_no_origin_is_said_with_what_would_be_right() {
    for (url, why) in [
        ("https://example.com", "uses TLS, which is not in this version"),
        ("ftp://example.com", "is not HTTP"),
        ("example.com:80", "does not begin with http://"),
        ("127.0.0.1", "does not begin with http://"),
        ("http://", "is not a URL"),
        ("http://user:secret@example.com", "has a user in it"),
        ("http://example.com/base", "has a path; requests keep the path that the client asked for"),
        ("http://example.com/?x", "has a path; requests keep the path that the client asked for"),
        ("http://example.com:0", "has a port that is not from 1 to 65535"),
        ("http://example.com:70000", "has a port that is not from 1 to 65535"),
        ("http://exa mple.com", "is not a URL"),
    ] {
        let settings = OriginSettings { url: url.to_owned(), ..OriginSettings::default() };
        let said = Origin::new(&Env::system(), &settings).unwrap_err().to_string();
        assert_eq!(said, format!("the origin {url:?} {why}; such as http://127.0.0.1:3000 would be right"));
    }
    for (url, host, port) in [
        ("http://example.com", "example.com", 80),
        ("http://example.com:8080/", "example.com", 8080),
        ("http://[::1]:3000", "[::1]", 3000),
        ("http://10.0.0.1", "10.0.0.1", 80),
    ] {
        assert_eq!(target(url), Ok(Target::Host(host.to_owned(), port)), "{url}");
    }
}

#[test]
fn a_name_with_an_address_where_nobody_listens_is_reached_at_the_other() {
    run(|env| async move {
        // On 127.0.0.1 only; `localhost` is often ::1 first.
        let raw = Raw::says(&env, HELLO).await;
        let origin = raw.origin_with(|settings| settings.url = format!("http://localhost:{}", raw.address.port()));
        for _ in 0..3 {
            assert_eq!(text(origin.get("/").await.unwrap()).await.unwrap(), "hello");
        }
        assert_eq!(origin.stats().faults, 0);
    });
}

#[test]
fn a_name_that_is_not_found_does_not_keep_the_proxy_from_starting() {
    run(|env| async move {
        let settings = OriginSettings {
            url: "http://no-such-name.invalid:80".to_owned(),
            attempts: 1,
            ..OriginSettings::default()
        };
        let origin = Origin::new(&env, &settings).unwrap();
        let error = origin.get("/").await.unwrap_err();
        assert!(matches!(error, OriginError::Connect(_)), "{error:?}");
        // A probe may have tried too.
        assert!(origin.stats().requests == 0 && origin.stats().unreachable >= 1);
    });
}

#[test]
fn a_name_that_leads_elsewhere_by_now_is_followed_there() {
    run(|env| async move {
        let [one, other] = [Raw::says(&env, HELLO).await, Raw::says(&env, HELLO).await];
        let told = Arc::new(Mutex::new(one.address));
        let looks = Arc::new(AtomicU32::new(0));
        let (tells, counts) = (Arc::clone(&told), Arc::clone(&looks));
        let names = Names::looked_up(&env, MS, move || {
            counts.fetch_add(1, SeqCst);
            let address = *tells.lock();
            async move { Ok(vec![address]) }
        });
        let origin = Origin::at(&env, &one.settings(), names);
        for _ in 0..3 {
            text(origin.get("/").await.unwrap()).await.unwrap();
        }
        // A connection may not be back when the next request goes, which makes another then.
        let before = one.connections();
        assert!(before >= 1 && other.connections() == 0);
        *told.lock() = other.address;
        // When the second look-up from now on begins, the first is known.
        let seen = looks.load(SeqCst);
        until(|| looks.load(SeqCst) >= seen + 2).await;
        for _ in 0..3 {
            text(origin.get("/").await.unwrap()).await.unwrap();
        }
        assert!(other.connections() >= 1);
        assert_eq!(one.connections(), before, "not even over what is open");
        until(|| origin.stats().connections <= other.connections()).await;
    });
}
