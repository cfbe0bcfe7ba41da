//! The binary, run as a user runs it.

mod cli;
mod demo;
mod lab;
mod manual;
mod proxy;
mod reference;
mod run;
mod sweep;
