//! Sockets in the file system, to clients and to the origin; and another `Host` for the origin.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixListener as Std},
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use super::world::{Asked, Step, World, answer, bytes, get, run, run_with};
use crate::{
    Listener, Proxy, Server, Settings,
    listener::CannotListen,
    settings::{ClientSettings, Listen},
};

/// A folder of the test's own.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("herdproof-{}-{}", std::process::id(), MADE.fetch_add(1, SeqCst));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        Folder(folder)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("x.sock")
    }

    fn names(&self) -> Vec<String> {
        fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn bind(&self) -> Result<Listener, CannotListen> {
        Listener::bind_to(&Listen::Unix(self.socket()), &ClientSettings::default())
    }

    fn door(&self, world: &World) -> Server {
        world.proxy.serve_on(&world.env, self.bind().unwrap())
    }

    async fn ask(&self, request: &str) -> String {
        let mut stream = UnixStream::connect(self.socket()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut told = String::new();
        // What is closed with bytes unread is reset.
        stream.read_to_string(&mut told).await.ok();
        told
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

const GET: &str = "GET /page HTTP/1.1\r\nhost: a.example\r\nconnection: close\r\n\r\n";

fn tells(asked: &Asked) -> Vec<Step> {
    if !asked.header("upgrade").is_empty() {
        let head = "HTTP/1.1 101 X\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        return vec![bytes(head), Step::Echo(usize::MAX)];
    }
    let told = ["host", "x-forwarded-host", "x-forwarded-for"].map(|name| asked.header(name));
    vec![answer(200, "cache-control: private", &told.join("|"))]
}

#[test]
fn clients_over_a_unix_socket_are_one_of_this_machine() {
    run(tells, async |world| {
        let folder = Folder::new();
        let server = folder.door(world);
        assert_eq!(server.place().to_string(), format!("unix:{}", folder.socket().display()));
        assert!(folder.ask(GET).await.ends_with("\r\n\r\na.example|a.example|127.0.0.1"));
        let forged = GET.replacen("host:", "x-forwarded-for: 6.6.6.6\r\nhost:", 1);
        assert!(folder.ask(&forged).await.ends_with("|127.0.0.1"));
        assert_eq!(server.stop(Duration::from_secs(5)).await.cut, 0);
        assert!(folder.names().is_empty(), "the file is removed");
    });
}

#[test]
fn a_proxy_in_front_over_a_unix_socket_is_believed_if_it_is_trusted() {
    let trusting = |settings: &mut Settings| settings.trusted_proxies = vec!["unix".parse().unwrap()];
    run_with(trusting, tells, async |world| {
        let folder = Folder::new();
        let _server = folder.door(world);
        let said = GET.replacen("host:", "x-forwarded-for: 6.6.6.6, 192.0.2.1\r\nhost:", 1);
        assert!(folder.ask(&said).await.ends_with("|192.0.2.1, 127.0.0.1"));
        // Over TCP nobody is.
        let told = world.raw(said.as_bytes()).await;
        assert!(told.ends_with("|127.0.0.1"), "{told}");
    });
}

#[test]
fn a_balancer_over_a_unix_socket_says_whom_it_connects_for() {
    let trusting = |settings: &mut Settings| {
        settings.trusted_proxies = vec!["unix".parse().unwrap()];
    };
    run_with(trusting, tells, async |world| {
        let folder = Folder::new();
        let clients = ClientSettings { proxy_protocol: true, ..ClientSettings::default() };
        let listener = Listener::bind_to(&Listen::Unix(folder.socket()), &clients).unwrap();
        let _server = world.proxy.serve_on(&world.env, listener);
        let told = folder.ask(&format!("PROXY TCP4 192.0.2.7 10.0.0.1 4000 80\r\n{GET}")).await;
        assert!(told.ends_with("|192.0.2.7"), "{told}");
        assert_eq!(folder.ask(GET).await, "");
    });
}

#[test]
fn the_file_of_a_dead_process_is_replaced_and_that_of_a_live_one_is_not() {
    run(tells, async |world| {
        let folder = Folder::new();
        // What a process that was killed leaves behind.
        drop(Std::bind(folder.socket()).unwrap());
        let first = folder.door(world);
        assert!(folder.ask(GET).await.contains("200"));
        let mode = fs::metadata(folder.socket()).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode, folder.names()), (0o660, vec!["x.sock".to_owned()]));
        let refused = folder.bind().unwrap_err().to_string();
        assert!(refused.contains("another program serves that socket"), "{refused}");
        assert!(folder.ask(GET).await.contains("200"), "and the first goes on");
        // One that takes over while the first still finishes keeps its file.
        fs::remove_file(folder.socket()).unwrap();
        let second = folder.door(world);
        drop(first);
        assert!(folder.ask(GET).await.contains("200"));
        drop(second);
        world.until(|| folder.names().is_empty()).await;

        fs::write(folder.socket(), "mine").unwrap();
        let refused = folder.bind().unwrap_err().to_string();
        assert!(refused.contains("something else than a socket is there"), "{refused}");
        assert_eq!(fs::read_to_string(folder.socket()).unwrap(), "mine");
        let nowhere = Listen::Unix(folder.0.join("none/x.sock"));
        let refused = Listener::bind_to(&nowhere, &ClientSettings::default()).unwrap_err().to_string();
        assert!(refused.contains("the folder of that socket does not exist"), "{refused}");
    });
}

#[test]
fn an_origin_behind_a_unix_socket_is_an_origin() {
    run(tells, async |world| {
        let folder = Folder::new();
        let behind = folder.door(world);
        let mut settings = Settings::default();
        settings.origin.url = format!("unix:{}", folder.socket().display());
        let proxy = Proxy::new(&world.env, settings, None).unwrap();
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &ClientSettings::default()).unwrap();
        let front = proxy.serve_on(&world.env, listener);
        world.ask_at(&front, get("/a")).await.unwrap().is(200, "a|a|127.0.0.1");
        assert_eq!(proxy.0.origin.stats().connections, 1);
        let mut stream = tokio::net::TcpStream::connect(front.address()).await.unwrap();
        let upgrade = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        stream.write_all(upgrade.as_bytes()).await.unwrap();
        let head = super::world::read_answer(&mut stream).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        stream.write_all(b"hello").await.unwrap();
        let mut told = [0; 5];
        stream.read_exact(&mut told).await.unwrap();
        assert_eq!(&told, b"hello");
        drop(stream);
        // And when it is gone, so that nothing is kept open to it, that is an answer too.
        drop(behind);
        world.until(|| proxy.0.origin.stats().connections == 0).await;
        let gone = world.ask_at(&front, get("/b")).await.unwrap();
        assert_eq!(gone.status, 502);
    });
}

#[test]
fn the_origin_hears_another_host_and_whom_the_client_asked_for() {
    let renamed = |settings: &mut Settings| settings.origin.host = Some("app.internal:81".into());
    run_with(renamed, tells, async |world| {
        for _ in 0..2 {
            let told = world.raw(GET.as_bytes()).await;
            assert!(told.ends_with("\r\n\r\napp.internal:81|a.example|127.0.0.1"), "{told}");
        }
    });
    let shared = |asked: &Asked| vec![answer(200, "cache-control: max-age=60", asked.header("x-forwarded-host"))];
    run_with(renamed, shared, async |world| {
        // Two hosts are two pages still.
        for host in ["a.example", "b.example"] {
            let told = world.raw(GET.replace("a.example", host).as_bytes()).await;
            assert!(told.ends_with(&format!("\r\n\r\n{host}")), "{told}");
        }
    });
}
