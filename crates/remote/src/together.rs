//! Several things at once: READs, WRITEs, calls and recipes, posted in order behind one doorbell and waited for together.

use std::collections::VecDeque;

use remanence_persist::recipe::Persistent;
use remanence_service::client::{Face, at_once};

use crate::error::Error;
use crate::message::Kind;
use crate::requester::{Refused, Requester, Ticket};
use crate::session::{Live, Plan, Session};

/// Bytes of a work request at most: a longer READ or WRITE is several, so that staging need not hold it whole.
const PIECE: u64 = 256 << 10;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub enum Work<'a> {
    /// RDMA READ of what is visible at the server.
    Read {
        /// From where in the region.
        at: u64,
        /// How many bytes.
        len: u64,
    },
    /// RDMA WRITE. When it has ended the bytes are visible, and nothing is said of whether they are durable.
    Write {
        /// To where in the region.
        at: u64,
        /// The bytes to write.
        bytes: &'a [u8],
    },
    /// A question to the server's application: as [`Session::call`].
    Call {
        /// The service of the application that is asked.
        service: u16,
        /// What is asked.
        request: &'a [u8],
    },
    /// A recipe: as [`Session::persist`].
    Persist {
        /// The plan whose recipe is carried out.
        plan: &'a Plan,
        /// Where, and what.
        updates: &'a [(u64, &'a [u8])],
    },
}

/// What became of a [`Work`].
#[derive(Debug)]
pub enum Done {
    /// The bytes that were read.
    Read(Vec<u8>),
    /// It is visible.
    Written,
    /// The answer, or the sentence with which the application refused.
    Reply(Result<Vec<u8>, String>),
    /// It is durable, and survives what this says.
    Persistent(Persistent),
}

/// A work request, or a run, that is to be begun.
#[derive(Clone, Copy, Debug)]
struct Piece {
    work: usize,
    /// Of a READ or a WRITE: which of its bytes.
    from: u64,
    len: u64,
}

/// One that was begun.
#[derive(Clone, Copy, Debug)]
enum Flying {
    Read { number: u64, staged: u64 },
    Write { number: u64 },
    Call { number: u64 },
    Run { ticket: Ticket },
}

impl Session {
    /// Posts these in this order, as far as there is room behind one doorbell, and waits until all have ended. Nothing is
    /// promised of the order in which they take effect, but that of a READ and a WRITE to the same bytes.
    ///
    /// # Errors
    /// [`Error::Argument`] if one of them can never be carried out, when others may have been; else the session is over, and
    /// each may have taken effect or not.
    pub fn together(&mut self, work: &[Work<'_>]) -> Result<Vec<Done>, Error> {
        at_once(self.together_as(Face::Thread, work))
    }

    /// As [`together`](Self::together), for whoever waits as it says.
    ///
    /// # Errors
    /// As [`together`](Self::together).
    pub async fn together_as(&mut self, face: Face, work: &[Work<'_>]) -> Result<Vec<Done>, Error> {
        if work.iter().any(|work| matches!(work, Work::Write { .. } | Work::Persist { .. })) {
            self.writes()?;
        }
        let mut done: Vec<Option<Done>> = work
            .iter()
            .map(|work| match work {
                Work::Read { len, .. } => Some(Done::Read(vec![0; *len as usize])),
                Work::Write { .. } => Some(Done::Written),
                Work::Call { .. } | Work::Persist { .. } => None,
            })
            .collect();
        let mut queue = pieces(work, PIECE.min(self.staging_len() / 4));
        let mut flying: Vec<(Piece, Flying)> = Vec::new();
        let mut never = None;
        loop {
            let refused = self.begin(work, &mut queue, &mut flying)?;
            let freed = self.harvest(&mut flying, &mut done);
            match refused {
                Some(Refused::Never(why)) => {
                    // What was begun ends first: it holds staging.
                    never = Some(why);
                    queue.clear();
                }
                // What has come has made room, and perhaps nothing more will come.
                Some(Refused::Busy | Refused::Staging(_)) if freed => {}
                Some(Refused::Staging(_)) if !flying.is_empty() => self.came(face).await?,
                Some(other) => self.make_room(face, other).await?,
                None if flying.is_empty() => break,
                None => self.came(face).await?,
            }
            self.harvest(&mut flying, &mut done);
        }
        match never {
            Some(why) => Err(Error::Argument(why)),
            None => Ok(done.into_iter().map(|done| done.expect("it has ended")).collect()),
        }
    }

    /// Begins as many as there is room for, and rings once.
    fn begin(
        &mut self,
        work: &[Work<'_>],
        queue: &mut VecDeque<Piece>,
        flying: &mut Vec<(Piece, Flying)>,
    ) -> Result<Option<Refused>, Error> {
        self.alive()?;
        if queue.is_empty() {
            return Ok(None);
        }
        self.with_port(|requester, port| {
            while let Some(piece) = queue.front() {
                match one(requester, work[piece.work], piece, port) {
                    Ok(begun) => flying.push((*piece, begun)),
                    Err(refused) => return Ok(Some(refused)),
                }
                queue.pop_front();
            }
            Ok(None)
        })
    }

    /// Takes what has come out of staging. Returns whether anything had.
    fn harvest(&mut self, flying: &mut Vec<(Piece, Flying)>, done: &mut [Option<Done>]) -> bool {
        let before = flying.len();
        flying.retain(|(piece, begun)| {
            let slot = &mut done[piece.work];
            !match begun {
                Flying::Read { number, staged } => {
                    let Some(Done::Read(bytes)) = slot else { unreachable!("a READ reads") };
                    let part = &mut bytes[piece.from as usize..(piece.from + piece.len) as usize];
                    self.take_read(*number, *staged, part)
                }
                Flying::Write { number } => self.is_done(*number),
                Flying::Call { number } => {
                    let reply = self.take_reply(*number);
                    let came = reply.is_some();
                    *slot = reply.map(Done::Reply).or_else(|| slot.take());
                    came
                }
                Flying::Run { ticket } => {
                    let ended = self.take_ended(*ticket);
                    let came = ended.is_some();
                    *slot = ended.map(Done::Persistent).or_else(|| slot.take());
                    came
                }
            }
        });
        flying.len() < before
    }
}

fn pieces(work: &[Work<'_>], longest: u64) -> VecDeque<Piece> {
    let mut queue = VecDeque::new();
    for (n, one) in work.iter().enumerate() {
        let len = match one {
            Work::Read { len, .. } => *len,
            Work::Write { bytes, .. } => bytes.len() as u64,
            Work::Call { .. } | Work::Persist { .. } => {
                queue.push_back(Piece { work: n, from: 0, len: 0 });
                continue;
            }
        };
        let starts = (0..len).step_by(longest as usize);
        queue.extend(starts.map(|from| Piece { work: n, from, len: longest.min(len - from) }));
    }
    queue
}

fn one(
    requester: &mut Requester,
    work: Work<'_>,
    piece: &Piece,
    port: &mut Live<'_>,
) -> Result<Flying, Refused> {
    Ok(match work {
        Work::Read { at, .. } => {
            let (number, staged) = requester.read(at.saturating_add(piece.from), piece.len as u32)?;
            Flying::Read { number, staged }
        }
        Work::Write { at, bytes } => {
            let part = &bytes[piece.from as usize..(piece.from + piece.len) as usize];
            Flying::Write { number: requester.write(at.saturating_add(piece.from), part, port)? }
        }
        Work::Call { service, request } => {
            Flying::Call { number: requester.call(Kind::Call, service, request, port)? }
        }
        Work::Persist { plan, updates } => {
            Flying::Run { ticket: requester.submit(plan.method(), updates, port)? }
        }
    })
}
