//! One server's part in an election, as Raft has it (Ongaro and Ousterhout 2014, figure 2): decisions, without clock, network or disk.

/// A server's place in the cluster.
pub(super) type Id = usize;

/// What a server knows.
#[derive(Clone, Debug)]
pub(super) struct Node {
    id: Id,
    /// How many entries its log has. All are of one term, so the longer log is the more up to date.
    log: u64,
    term: u64,
    /// Whom it has voted for in this term: once, for good.
    vote: Option<Id>,
    role: Role,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    Follower,
    /// With so many votes, its own included.
    Candidate(usize),
    Leader,
}

/// A candidate asks for a vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) term: u64,
    pub(super) candidate: Id,
    pub(super) log: u64,
}

/// What it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) term: u64,
    pub(super) granted: bool,
}

impl Node {
    pub(super) fn new(id: Id, log: u64) -> Node {
        Node { id, log, term: 0, vote: None, role: Role::Follower }
    }

    /// Nobody was heard of for too long: it stands for election in a new term.
    pub(super) fn stand(&mut self) -> Request {
        self.enter(self.term + 1);
        self.vote = Some(self.id);
        self.role = Role::Candidate(1);
        Request { term: self.term, candidate: self.id, log: self.log }
    }

    /// Answers a candidate. Who was granted a vote is given time to win: the timer begins anew then.
    pub(super) fn asked(&mut self, request: Request) -> Answer {
        if request.term > self.term {
            self.enter(request.term);
        }
        let is_free = self.vote.is_none_or(|vote| vote == request.candidate);
        let granted = request.term == self.term && is_free && request.log >= self.log;
        if granted {
            self.vote = Some(request.candidate);
        }
        Answer { term: self.term, granted }
    }

    /// Takes an answer, to a request of this term or of an earlier one. Whether that made it the leader.
    pub(super) fn answered(&mut self, asked_in: u64, answer: Answer, majority: usize) -> bool {
        if answer.term > self.term {
            self.enter(answer.term);
        }
        let Role::Candidate(votes) = &mut self.role else { return false };
        *votes += usize::from(answer.granted && asked_in == self.term);
        let is_elected = *votes >= majority;
        if is_elected {
            self.role = Role::Leader;
        }
        is_elected
    }

    fn enter(&mut self, term: u64) {
        self.term = term;
        self.vote = None;
        self.role = Role::Follower;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(term: u64, candidate: Id, log: u64) -> Request {
        Request { term, candidate, log }
    }

    #[test]
    fn a_vote_is_given_once_in_a_term() {
        let mut voter = Node::new(0, 5);
        assert_eq!(voter.asked(request(1, 1, 5)), Answer { term: 1, granted: true });
        assert!(!voter.asked(request(1, 2, 9)).granted, "however good the second is");
        assert!(voter.asked(request(1, 1, 5)).granted, "the first may have lost the answer");
        assert!(voter.asked(request(2, 2, 5)).granted, "a new term is a new vote");
        assert!(!voter.asked(request(1, 1, 5)).granted, "and the old one is over");
    }

    #[test]
    fn who_stands_votes_for_itself() {
        let mut node = Node::new(0, 5);
        assert_eq!(node.stand(), request(1, 0, 5));
        assert!(!node.asked(request(1, 1, 9)).granted);
    }

    #[test]
    fn a_shorter_log_gets_no_vote_but_its_term_counts() {
        let mut voter = Node::new(0, 5);
        assert_eq!(voter.asked(request(3, 1, 4)), Answer { term: 3, granted: false });
        assert_eq!(voter.stand().term, 4);
    }

    #[test]
    fn votes_of_an_earlier_term_do_not_count() {
        let mut node = Node::new(0, 5);
        let first = node.stand().term;
        let second = node.stand().term;
        let yes = |term| Answer { term, granted: true };
        assert!(!node.answered(first, yes(first), 3) && !node.answered(first, yes(first), 3));
        assert!(!node.answered(second, yes(second), 3), "two of five");
        assert!(node.answered(second, yes(second), 3), "three of five");
        assert!(!node.answered(second, yes(second), 3), "it is the leader already");
    }

    #[test]
    fn who_hears_of_a_later_term_stands_back() {
        let mut node = Node::new(0, 5);
        let term = node.stand().term;
        assert!(!node.answered(term, Answer { term: term + 1, granted: false }, 2));
        assert!(!node.answered(term, Answer { term, granted: true }, 2));
    }
}
