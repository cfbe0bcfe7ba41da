//! The binary, run as a user runs it.

mod ask;
mod cli;
mod demo;
mod lab;
mod log;
mod manual;
mod proxy;
mod reference;
mod run;
mod sweep;
