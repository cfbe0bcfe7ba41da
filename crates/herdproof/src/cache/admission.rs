//! The limit on loads across all keys, whichever gate it is.
//!
//! One load per key does nothing against a hundred thousand different keys that expire together. A gate's `enter` cannot be
//! called through a pointer, so this is the same with boxes; a load costs more than those.

use std::{future::Future, pin::Pin, sync::Arc};

use crate::gate::{Ask, Gate, Permit, PermitOf, Refusal, Span, Verdict};

/// On the way in.
pub(super) type Entering = Pin<Box<dyn Future<Output = Result<Box<dyn Admitted>, Refusal>> + Send>>;

pub(super) trait Admission: Send + Sync {
    fn enter(self: Arc<Self>, ask: Ask) -> Entering;
}

pub(super) trait Admitted: Send {
    fn settle(self: Box<Self>, verdict: &Verdict, span: Span);
}

impl<G: Gate + 'static> Admission for G
where
    PermitOf<G>: 'static,
{
    fn enter(self: Arc<Self>, mut ask: Ask) -> Entering {
        Box::pin(async move {
            let permit = Gate::enter(&*self, &mut ask).await?;
            Ok(Box::new(permit) as Box<dyn Admitted>)
        })
    }
}

impl<P: Permit> Admitted for P {
    fn settle(self: Box<Self>, verdict: &Verdict, span: Span) {
        Permit::settle(*self, verdict, span);
    }
}
