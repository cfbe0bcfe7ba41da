//! A caching, coalescing reverse proxy: no code changes behind it, and no herd reaches the service.
//!
//! So far the part that decides. Everything here is a function of headers, times and settings: no clock, no socket, no task.
//!
//! | module | decides |
//! |---|---|
//! | [`key`] | which requests ask for the same thing |
//! | [`policy`] | who may share an answer, how long it is fresh, and what may be done with it after that |

pub mod key;
pub mod policy;
