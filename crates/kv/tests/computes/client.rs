//! What a client promises: it says that it uses an older view no more only when that is so.

use crate::common;

use common::{DURABLE, SMALL, Store as Pure, formatted};
use remanence_kv::client::{Client, Completion, Get, Operation, Progress, Put, RemoteMemory, Verb, run};
use remanence_kv::proto::{Expect, Reply, Request};
use remanence_kv::view::View;

#[test]
fn a_view_is_acknowledged_only_when_nothing_that_began_before_it_is_under_way() {
    let image = formatted(SMALL, 16);
    let store = Pure::open(&image, DURABLE);
    let view = store.server.borrow().view();
    let mut client = Client::new(view.clone(), 8);
    let mut get = Get::new(b"a key");
    assert!(matches!(get.step(&mut client, 1, vec![]), Progress::Post(_)), "it reads by the old view");
    let mut put = Put::new(b"another", b"value", 0, Expect::Any);
    assert!(matches!(put.step(&mut client, 1, vec![]), Progress::Post(_)), "it writes by the old view");
    let mut next = view.clone();
    next.number += 1;
    client.adopt(next);
    // What the server does when it has heard from all: it uses memory anew that the GET is about to read.
    assert_eq!(client.poll_acknowledgement(), None, "a GET and a PUT are under way");
    get.cancel(&mut client);
    assert_eq!(client.poll_acknowledgement(), None, "a PUT is under way");
    put.cancel(&mut client);
    let said = Some(Request::Acknowledge { view: view.number + 1 });
    assert_eq!(client.poll_acknowledgement(), said);
    assert_eq!(client.poll_acknowledgement(), None, "once");
}

/// A GET that finds somebody in its way once, and then ends.
struct Held(Get, bool);

impl Operation for Held {
    type Output = ();

    fn step(&mut self, client: &mut Client, now: u64, _: Vec<Completion>) -> Progress<()> {
        if !std::mem::replace(&mut self.1, true) {
            assert!(matches!(self.0.step(client, now, vec![]), Progress::Post(_)), "it is under way");
            return Progress::Again;
        }
        self.0.cancel(client);
        Progress::Done(())
    }

    fn cancel(&mut self, client: &mut Client) -> Option<Request> {
        self.0.cancel(client)
    }
}

/// A server that has a newer view, and keeps what is acknowledged.
struct Newer(View, Vec<Request>);

impl RemoteMemory for Newer {
    type Error = std::convert::Infallible;

    fn post(&mut self, verbs: Vec<Verb>) -> Result<Vec<Completion>, Self::Error> {
        let answer = |verb| match verb {
            Verb::Call(Request::View) => Completion::Reply(Reply::View(self.0.clone())),
            Verb::Call(request) => {
                self.1.push(request);
                Completion::Reply(Reply::Ok)
            }
            other => panic!("{other:?}"),
        };
        Ok(verbs.into_iter().map(answer).collect())
    }

    fn now(&self) -> u64 {
        1
    }

    fn again(&mut self, _: u32) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// Else nobody would, until the next view: the server waits for a client that has nothing to say, and cuts it off.
#[test]
fn a_view_that_comes_while_an_operation_waits_is_acknowledged_at_its_end() {
    let image = formatted(SMALL, 16);
    let view = Pure::open(&image, DURABLE).server.borrow().view();
    let mut client = Client::new(view.clone(), 8);
    let mut newer = Newer(View { number: view.number + 1, ..view.clone() }, Vec::new());
    let Ok(()) = run(&mut client, &mut newer, &mut Held(Get::new(b"a key"), false));
    assert_eq!(newer.1, [Request::Acknowledge { view: view.number + 1 }]);
    assert_eq!(client.poll_acknowledgement(), None);
}
