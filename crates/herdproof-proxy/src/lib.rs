//! A reverse proxy that keeps a crowd of identical requests from becoming a crowd at the origin behind it.

mod listener;
mod metrics;
mod settings;

pub use listener::{CannotListen, Client, Ended, Listener, Server, Stopped, Upload, raise_descriptors};
pub use metrics::Page;
pub use settings::{
    BadSettings, ClientSettings, Cookies, LogFormat, LogSettings, LogTo, NotASize, NotATime, NotAnAddress,
    OriginSettings, Route, Settings, parse_address, parse_size, parse_time, show_size, show_time,
};
