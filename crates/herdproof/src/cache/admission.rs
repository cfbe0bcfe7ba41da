//! The limit on loads across all keys, whichever gate it is.
//!
//! One load per key does nothing against a hundred thousand different keys that expire together. A gate's `enter` cannot be
//! called through a pointer, so this is the same with boxes; a load costs more than those.

use std::{future::Future, pin::Pin};

use crate::gate::{Ask, Gate, Permit, Refusal, Span, Verdict};

type Entering<'a> = Pin<Box<dyn Future<Output = Result<Box<dyn Admitted>, Refusal>> + Send + 'a>>;

pub(super) trait Admission: Send + Sync {
    fn enter(&self, ask: Ask) -> Entering<'_>;
}

pub(super) trait Admitted: Send {
    fn settle(self: Box<Self>, verdict: &Verdict, span: Span);
}

impl<G: Gate> Admission for G
where
    G::Permit: 'static,
{
    fn enter(&self, mut ask: Ask) -> Entering<'_> {
        Box::pin(async move {
            let permit = Gate::enter(self, &mut ask).await?;
            Ok(Box::new(permit) as Box<dyn Admitted>)
        })
    }
}

impl<P: Permit> Admitted for P {
    fn settle(self: Box<Self>, verdict: &Verdict, span: Span) {
        Permit::settle(*self, verdict, span);
    }
}
