//! A reverse proxy that keeps a crowd of identical requests from becoming a crowd at the origin behind it.

pub mod origin;
