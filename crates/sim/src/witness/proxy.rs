//! What is seen of the proxy: calls of the upstream, what is kept of its answers, and what is given of them.

use entrega::store::{CachedAnswer, KeptAnswer};
use entrega_core::id::JobId;
use entrega_core::job::Job;
use entrega_core::name::LaneName;
use entrega_core::time::Time;

use super::Witness;
use super::answers::Call;
use super::hands::Claimed;
use crate::route::{PROXY_LANE, question};

impl Witness {
    /// Somebody asked at a moment, and gets this answer.
    pub(super) fn given(&mut self, since: Time, question: &str, answer: &KeptAnswer) {
        self.troubles.from_cache += u32::from(answer.cache.is_some());
        self.judge(self.answers.given(since, question, answer));
    }

    /// A question was answered as it was taken.
    pub fn answered(&mut self, job: &Job, answer: &KeptAnswer) {
        self.given(self.drift.moment(job.accepted_at), &question(job).unwrap_or_default(), answer);
    }

    /// The upstream is asked for a job; gives the number of the call.
    pub fn asking(&mut self, now: Time, node: usize, job: &str, question: &str) -> usize {
        self.troubles.asked += 1;
        self.note(now, format_args!("asks {question} for {job}"));
        let (moment, lane) = (self.drift.moment(now), LaneName::new(PROXY_LANE).expect("a lane name"));
        let id: Option<JobId> = job.parse().ok();
        let claimed = id.and_then(|id| self.hands.last_claim(id)).unwrap_or_else(|| {
            self.break_promise("one_at_a_time", format!("{job} is asked for by somebody who never got it"));
            Claimed { at: moment, is_past_breaker: false, node }
        });
        let call = Call { question: question.to_owned(), claimed };
        let (number, checked) = self.answers.asked(moment, call);
        let tenant = id.and_then(|id| self.jobs.get(&id)).map(|seen| seen.tenant.clone());
        let policy = self.plan.lanes[&lane].clone();
        let is_lost = id.is_some_and(|id| self.rewound.may_differ(&lane, id));
        let paced = match tenant {
            _ if is_lost => Ok(()),
            Some(_) if self.owners.has_just_resumed(node, moment) => Ok(()),
            // Whether somebody else calls is looked up in the ledger that nodes share, and that takes a moment.
            Some(tenant) if claimed.at == moment || self.plan.nodes.is_some() => {
                self.starts.add(claimed.at, (&lane, &tenant), &policy, None)
            }
            _ => Err(("throttle_respected", "asks later than it was let go".into())),
        };
        self.judge(checked.and(paced).map_err(|(checker, why)| (checker, format!("{job} {why}"))));
        number
    }

    /// The upstream answers.
    pub fn answering(&mut self, now: Time, call: usize, body: &[u8]) {
        self.answers.answered(self.drift.moment(now), call, body);
    }

    /// Nobody waits for a call of the upstream any more.
    pub fn asking_over(&mut self, call: usize) {
        self.answers.ended(call);
    }

    /// The ledger did not say what is kept for a question, or whether somebody asks it: that costs a call.
    pub fn unanswered(&mut self, now: Time, node: usize, question: &str) {
        self.answers.unanswered(self.drift.moment(now), node, question);
    }

    /// The store keeps an answer.
    pub fn kept(&mut self, now: Time, question: &str, answer: &CachedAnswer) {
        let checked = self.answers.kept(self.drift.moment(now), question, answer);
        self.judge(checked);
    }
}
