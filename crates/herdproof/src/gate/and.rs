//! Two gates in a row.

use super::{Ask, Gate, Permit, Refusal, Span, Verdict, Why};

/// One gate behind another, from [`Gate::and`].
#[derive(Clone, Debug)]
pub struct And<A, B> {
    outer: A,
    inner: B,
}

/// The permits of two gates.
#[derive(Debug)]
pub struct Both<A, B> {
    outer: A,
    inner: B,
}

impl<A, B> And<A, B> {
    pub(super) fn new(outer: A, inner: B) -> And<A, B> {
        And { outer, inner }
    }
}

impl<A: Gate, B: Gate> Gate for And<A, B> {
    type Permit = Both<A::Permit, B::Permit>;

    fn try_enter(&self, ask: &Ask) -> Result<Self::Permit, Refusal> {
        let outer = self.outer.try_enter(ask)?;
        let inner = self.inner.try_enter(ask)?;
        Ok(Both { outer, inner })
    }

    async fn enter(&self, ask: &mut Ask) -> Result<Self::Permit, Refusal> {
        let mut outer = self.outer.enter(ask).await?;
        if ask.is_late() {
            return Err(Refusal::new(Why::Deadline));
        }
        let inner = self.inner.enter(ask).await?;
        // Whether or not the inner one has waited: a wait may end at the tick at which it began.
        self.outer.renew(&mut outer, ask)?;
        Ok(Both { outer, inner })
    }

    #[inline]
    fn renew(&self, permit: &mut Self::Permit, ask: &Ask) -> Result<(), Refusal> {
        self.outer.renew(&mut permit.outer, ask)?;
        self.inner.renew(&mut permit.inner, ask)
    }
}

impl<A: Permit, B: Permit> Permit for Both<A, B> {
    fn settle(self, verdict: &Verdict, span: Span) {
        self.inner.settle(verdict, span);
        self.outer.settle(verdict, span);
    }
}
