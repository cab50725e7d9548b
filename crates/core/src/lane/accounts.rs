//! Accounts: what each tenant takes up of a lane, whichever of its endpoints it is for.
//! Invariant: the places of all accounts add up to the jobs that wait.
//! Never: refuses what was accepted; a quota is looked at when a job asks to be let in.

use std::collections::HashMap;

use super::slab::{Entry, Place, Slot};
use super::{Lane, Waiting};
use crate::name::TenantName;
use crate::policy::LanePolicy;
use crate::quota::{Quota, Quotas};

/// What a tenant takes up of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Its jobs that wait.
    pub places: u32,
    /// What its jobs carry, those under way included.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct Account {
    /// Nobody's, of one that was forgotten and whose number is free.
    name: Option<TenantName>,
    /// How many names in turn order it is for.
    names: u32,
    usage: Usage,
    quotas: Quotas,
}

/// All accounts of a lane, by number.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    accounts: Vec<Account>,
    free: Vec<u32>,
    by_name: HashMap<TenantName, u32>,
}

impl Accounts {
    /// The number of the account that work of a name goes to which takes turns from now on.
    pub(super) fn enter(&mut self, name: &TenantName) -> u32 {
        let number = self.open(name);
        self.accounts[number as usize].names += 1;
        number
    }

    /// A name takes turns no more; an account that nobody uses is forgotten with the last.
    pub(super) fn leave(&mut self, number: u32) {
        let account = &mut self.accounts[number as usize];
        account.names -= 1;
        if account.names == 0
            && account.quotas == Quotas::default()
            && let Some(name) = account.name.take()
        {
            self.by_name.remove(&name);
            self.free.push(number);
        }
    }

    /// The account of a tenant, made on first sight.
    fn open(&mut self, name: &TenantName) -> u32 {
        let company = name.company();
        if let Some(&number) = self.by_name.get(&company) {
            return number;
        }
        let account = Account { name: Some(company.clone()), ..Account::default() };
        let number = self.free.pop().unwrap_or(self.accounts.len() as u32);
        match self.accounts.get_mut(number as usize) {
            Some(free) => *free = account,
            None => self.accounts.push(account),
        }
        self.by_name.insert(company, number);
        number
    }

    fn find(&self, name: &TenantName) -> Option<&Account> {
        let number = self.by_name.get(&name.company())?;
        Some(&self.accounts[*number as usize])
    }

    /// An entry is put in, or was moved: it counts as what it is now.
    pub(super) fn add(&mut self, account: u32, entry: &Entry) {
        let usage = &mut self.accounts[account as usize].usage;
        usage.places += u32::from(entry.place != Place::Running);
        usage.bytes += u64::from(entry.bytes);
    }

    /// An entry is about to leave or to be moved.
    pub(super) fn sub(&mut self, account: u32, entry: &Entry) {
        let usage = &mut self.accounts[account as usize].usage;
        usage.places -= u32::from(entry.place != Place::Running);
        usage.bytes -= u64::from(entry.bytes);
    }

    /// The quota that one job more would be over.
    fn exceeded(&self, policy: &LanePolicy, tenant: &TenantName) -> Option<Quota> {
        let (usage, quotas) = self.find(tenant).map(|account| (account.usage, account.quotas)).unwrap_or_default();
        // Who may have the whole lane meets its capacity, and no quota.
        let places = Some(quotas.places_in(policy)).filter(|places| *places < policy.capacity);
        places.is_some_and(|places| usage.places >= places).then_some(Quota::Places)
    }
}

impl Lane {
    /// Sets what a tenant may take up. Whoever has more than that keeps it, and gets nothing more in.
    pub fn set_quotas(&mut self, tenant: &TenantName, quotas: Quotas) {
        let account = self.turns.accounts.open(tenant);
        self.turns.accounts.accounts[account as usize].quotas = quotas;
    }

    /// What a tenant takes up, all of its endpoints together.
    pub fn usage(&self, tenant: &TenantName) -> Usage {
        self.turns.accounts.find(tenant).map(|account| account.usage).unwrap_or_default()
    }

    /// The tenants that have all the places they may have, at most `max` of them.
    pub fn tenants_without_places(&self, max: usize) -> Vec<TenantName> {
        let is_over = |account: &&Account| account.usage.places >= account.quotas.places_in(&self.policy);
        self.turns
            .accounts
            .accounts
            .iter()
            .filter(is_over)
            .filter_map(|account| account.name.clone())
            .take(max)
            .collect()
    }

    /// The quota that letting this job in would break.
    pub(super) fn exceeded(&self, job: &Waiting) -> Option<Quota> {
        self.turns.accounts.exceeded(&self.policy, &job.tenant)
    }

    /// Counts an entry that was put in or moved.
    pub(super) fn count(&mut self, slot: Slot) {
        let entry = &self.slab[slot];
        self.sizes.add(entry);
        let account = self.turns.tenants[entry.tenant as usize].account;
        self.turns.accounts.add(account, entry);
    }

    /// Counts an entry no more that is about to leave or to be moved.
    pub(super) fn uncount(&mut self, slot: Slot) {
        let entry = &self.slab[slot];
        self.sizes.sub(entry);
        let account = self.turns.tenants[entry.tenant as usize].account;
        self.turns.accounts.sub(account, entry);
    }
}
