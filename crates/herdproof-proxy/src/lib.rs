//! A reverse proxy that keeps a crowd of identical requests from becoming a crowd at the origin behind it.

mod head;
mod log;
mod sync;
