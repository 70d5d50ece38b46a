//! What a server's application does besides serving: what two-sided schemes depend on, and one-sided ones should not. All benches
//! have it from here, and figures have its names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use remanence_remote::Stop;
use serde::{Deserialize, Serialize};

/// What the threads of a server do. Nobody who comes is seen twice: a piece of work comes before the look at what has arrived, and
/// what is found is served at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum ServerLoad {
    /// The serving thread has nothing else to do, and sleeps until something comes.
    Sleeps,
    /// It has nothing else to do, and never sleeps: it works for 0 us between two looks.
    Spins,
    /// It works for so many microseconds, looks, serves all that has come, and works again.
    Works(u32),
    /// It has nothing else to do, and never sleeps; the application works beside it all the time, on a thread of its own.
    PollingThread,
}

impl ServerLoad {
    /// What figures and bars call an idle server.
    pub const IDLE: Self = Self::Sleeps;
    /// What figures and bars call a busy one.
    pub const BUSY: Self = Self::Works(50);
    /// All that are measured.
    pub const ALL: [Self; 6] =
        [Self::IDLE, Self::Spins, Self::Works(10), Self::BUSY, Self::Works(200), Self::PollingThread];

    /// Its name in figures, tables and JSON.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Sleeps => "idle".into(),
            Self::Spins => "spinning".into(),
            Self::Works(us) => format!("busy {us} us"),
            Self::PollingThread => "polling thread".into(),
        }
    }

    /// How long it works between two looks, where that is swept; `None`: it is none of those.
    #[must_use]
    pub const fn work_us(self) -> Option<u32> {
        match self {
            Self::Spins => Some(0),
            Self::Works(us) => Some(us),
            Self::Sleeps | Self::PollingThread => None,
        }
    }

    /// The name of a series of a scheme at such a server.
    #[must_use]
    pub fn series(self, scheme: &str) -> String {
        format!("{scheme}/{}", self.name())
    }

    /// The scheme of a [`series`](Self::series), if it is of such a server.
    #[must_use]
    pub fn scheme(self, series: &str) -> Option<&str> {
        series.strip_suffix(self.name().as_str())?.strip_suffix('/')
    }

    /// Has a server that does not run yet do it. The application that works beside it does so until what is returned goes.
    pub(crate) fn put_on(self, server: &mut impl Loaded) -> Result<Option<Application>, String> {
        match self {
            Self::Sleeps => {}
            Self::Works(us) => server.on_round(move || work(Duration::from_micros(us.into()))),
            Self::Spins => server.spin(),
            Self::PollingThread => {
                server.spin();
                return Application::start().map(Some);
            }
        }
        Ok(None)
    }
}

impl ServerLoad {
    /// Of a [`series`](Self::series): at which server it is, if it is said.
    #[must_use]
    pub fn of(series: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|load| load.scheme(series).is_some())
    }

    /// Has a thread that is a server do it until it is asked to stop.
    pub(crate) fn serve(self, server: &mut impl Looking, stop: &Stop) -> Result<(), String> {
        /// Looks after which others may have the core.
        const LOOKS: u32 = 256;
        let _beside = if self == Self::PollingThread { Some(Application::start()?) } else { None };
        if self == Self::Sleeps {
            return server.sleep(stop);
        }
        let mut looks = 0_u32;
        while !stop.is_asked() {
            if let Self::Works(us) = self {
                work(Duration::from_micros(us.into()));
            }
            server.look()?;
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) {
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}

/// A server that is driven by the thread that it is given.
pub(crate) trait Looking {
    /// Serves what has come, and does not wait for more.
    fn look(&mut self) -> Result<(), String>;

    /// Serves whoever comes until it is asked to stop, and sleeps in between.
    fn sleep(&mut self, stop: &Stop) -> Result<(), String>;
}

/// A server whose serving thread may do other things too.
pub(crate) trait Loaded {
    /// It works before each look at what has come.
    fn on_round(&mut self, work: impl FnMut() + Send + 'static);

    /// It never sleeps.
    fn spin(&mut self);
}

impl Loaded for remanence_kv_live::Server {
    fn on_round(&mut self, work: impl FnMut() + Send + 'static) {
        self.on_round(work);
    }

    fn spin(&mut self) {
        self.spin();
    }
}

impl Loaded for remanence_remotelog::LogServer {
    fn on_round(&mut self, work: impl FnMut() + Send + 'static) {
        self.on_round(work);
    }

    fn spin(&mut self) {
        self.spin();
    }
}

/// Takes a core's time, and no memory's.
fn work(limit: Duration) {
    let begin = Instant::now();
    let mut state = 1_u64;
    while begin.elapsed() < limit {
        for _ in 0..64 {
            state = std::hint::black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
}

/// An application that works all the time, on a thread of its own, until this goes.
pub(crate) struct Application {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Application {
    fn start() -> Result<Self, String> {
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let works = move || {
            while !ends.load(Ordering::Relaxed) {
                work(Duration::from_micros(50));
            }
        };
        let thread = std::thread::Builder::new().name("works".into()).spawn(works);
        Ok(Self { over, thread: Some(thread.map_err(|e| format!("a thread cannot be started: {e}"))?) })
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[derive(Default)]
    struct Server {
        work: Option<Box<dyn FnMut() + Send>>,
        spins: bool,
    }

    impl Loaded for Server {
        fn on_round(&mut self, work: impl FnMut() + Send + 'static) {
            self.work = Some(Box::new(work));
        }

        fn spin(&mut self) {
            self.spins = true;
        }
    }

    #[test]
    fn each_has_a_name_of_its_own_by_which_its_series_are_found() {
        let names: BTreeSet<String> = ServerLoad::ALL.into_iter().map(ServerLoad::name).collect();
        assert_eq!(names.len(), ServerLoad::ALL.len());
        for load in ServerLoad::ALL {
            let series = load.series("Erda, two READs");
            let found: Vec<_> = ServerLoad::ALL.iter().filter_map(|load| load.scheme(&series)).collect();
            assert_eq!(found, ["Erda, two READs"], "{series}");
            assert_eq!(ServerLoad::of(&series), Some(load));
        }
        let swept: Vec<_> = ServerLoad::ALL.into_iter().filter_map(ServerLoad::work_us).collect();
        assert_eq!(swept, [0, 10, 50, 200]);
    }

    /// It asks to be stopped after so many looks.
    struct Looks(u32, Stop, bool);

    impl Looking for Looks {
        fn look(&mut self) -> Result<(), String> {
            self.0 -= 1;
            if self.0 == 0 {
                self.1.ask();
            }
            Ok(())
        }

        fn sleep(&mut self, _: &Stop) -> Result<(), String> {
            self.2 = true;
            Ok(())
        }
    }

    #[test]
    fn a_thread_works_before_each_look_and_only_an_idle_one_sleeps() {
        for load in ServerLoad::ALL {
            let stop = Stop::new();
            let mut server = Looks(3, stop.clone(), false);
            let begin = Instant::now();
            load.serve(&mut server, &stop).expect("it is stopped");
            assert_eq!((server.0, server.2), if load == ServerLoad::IDLE { (3, true) } else { (0, false) });
            let work = 3 * load.work_us().unwrap_or(0);
            assert!(begin.elapsed() >= Duration::from_micros(work.into()), "{load:?}");
        }
    }

    #[test]
    fn a_server_works_spins_or_sleeps_as_it_is_said() {
        for load in ServerLoad::ALL {
            let mut server = Server::default();
            let application = load.put_on(&mut server).expect("a thread");
            assert_eq!(application.is_some(), load == ServerLoad::PollingThread, "{load:?}");
            assert_eq!(server.spins, matches!(load, ServerLoad::Spins | ServerLoad::PollingThread));
            let begin = Instant::now();
            let worked = server.work.as_mut().map(|work| work());
            let least = Duration::from_micros(load.work_us().unwrap_or(0).into());
            assert_eq!(worked.is_some(), matches!(load, ServerLoad::Works(_)), "{load:?}");
            assert!(begin.elapsed() >= least, "{load:?}");
        }
    }
}
