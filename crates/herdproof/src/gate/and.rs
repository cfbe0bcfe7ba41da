//! Two gates in a row.

use super::{Ask, Gate, Permit, Place, Refusal, Span, Verdict, Why};

/// One gate behind another, from [`Gate::and`].
#[derive(Clone, Debug)]
pub struct And<A, B> {
    outer: A,
    inner: B,
}

/// The places or the permits of two gates.
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
    type Place = Both<A::Place, B::Place>;

    fn try_reserve(&self, ask: &Ask) -> Result<Self::Place, Refusal> {
        let outer = self.outer.try_reserve(ask)?;
        let inner = self.inner.try_reserve(ask)?;
        Ok(Both { outer, inner })
    }

    async fn reserve(&self, ask: &mut Ask) -> Result<Self::Place, Refusal> {
        let mut outer = self.outer.reserve(ask).await?;
        if ask.is_late() {
            return Err(Refusal::new(Why::Deadline));
        }
        let inner = self.inner.reserve(ask).await?;
        // Whether or not the inner one has waited: a wait may end at the tick at which it began.
        self.outer.renew(&mut outer, ask)?;
        Ok(Both { outer, inner })
    }

    #[inline]
    fn renew(&self, place: &mut Self::Place, ask: &Ask) -> Result<(), Refusal> {
        self.outer.renew(&mut place.outer, ask)?;
        self.inner.renew(&mut place.inner, ask)
    }
}

impl<A: Place, B: Place> Place for Both<A, B> {
    type Permit = Both<A::Permit, B::Permit>;

    fn commit(self) -> Self::Permit {
        Both { outer: self.outer.commit(), inner: self.inner.commit() }
    }
}

impl<A: Permit, B: Permit> Permit for Both<A, B> {
    fn settle(self, verdict: &Verdict, span: Span) {
        self.inner.settle(verdict, span);
        self.outer.settle(verdict, span);
    }
}
