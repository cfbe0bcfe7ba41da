//! What the proxy learns of a route, taught by strangers: to be wrong must not let a herd through.

use crate::{
    client::{Request, herd},
    good::{beside, spam},
    report::{Findings, Tally},
    world::{Context, Place},
};

/// Neighbours first, then cold herds at pages of the same route.
async fn taught(context: &Context, place: Place, findings: &mut Findings, neighbour: &str, most: usize) {
    let world = context.world(&[]);
    let request = |number| Request::get(format!("/shop/{neighbour}-{number}"));
    spam(&world, 50.0, context.pick(2, 1) * std::time::Duration::from_millis(600), request).await;
    let path = "/shop/page-4711";
    let answers = herd(&place.addresses(), world.proxy.at, context.pick(800, 100), |_| Request::get(path)).await;
    findings.nobody_failed("taught before", "herd", &Tally::of(&answers));
    findings.at_most("taught before", "origin requests for a cold herd", world.origin.asked_for(path), most);
    herd(&place.addresses(), world.proxy.at, 20, |_| Request::get(path)).await;
    findings.at_most("taught before", "origin requests, once it is stored", world.origin.asked_for(path), most);
    beside(findings, context, place, ("taught meanwhile", 50.0), most, request).await;
}

pub(crate) async fn learned_private_by_404(context: &Context, place: Place, findings: &mut Findings) {
    taught(context, place, findings, "missing", 1).await;
}

pub(crate) async fn learned_private_by_neighbours(context: &Context, place: Place, findings: &mut Findings) {
    taught(context, place, findings, "private", 8).await;
}

pub(crate) async fn learned_private_by_failures(context: &Context, place: Place, findings: &mut Findings) {
    taught(context, place, findings, "fails", 1).await;
}
