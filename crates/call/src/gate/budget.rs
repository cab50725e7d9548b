//! The retry budget of one destination, for many tasks.
//! Invariant: calls and retries are counted over all clones.
//! Never: waits; a retry that is not in the budget is not made.

use std::sync::{Arc, Mutex};

use entrega_core::retry_budget::{BudgetPolicy, RetryBudget};

use super::locked;
use crate::clock::Clock;

/// Grants retries out of a budget: see [`entrega_core::retry_budget`]. Clones share it.
#[derive(Clone, Debug)]
pub struct BudgetGate {
    budget: Arc<Mutex<RetryBudget>>,
    clock: Clock,
}

impl BudgetGate {
    /// Nothing called yet.
    #[must_use]
    pub fn new(policy: BudgetPolicy, clock: Clock) -> BudgetGate {
        BudgetGate { budget: Arc::new(Mutex::new(RetryBudget::new(policy))), clock }
    }

    /// Records a call's first attempt.
    pub fn call(&self) {
        locked(&self.budget).call(self.clock.now());
    }

    /// Takes a retry out of the budget; `false` when it is spent.
    #[must_use]
    pub fn retry(&self) -> bool {
        locked(&self.budget).retry(self.clock.now())
    }
}
