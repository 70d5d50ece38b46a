//! Which A/A pairs say of a comparison what is no difference.

use crate::server_load::ServerLoad;

/// How many ways there are in which an A/A pair may be like what is compared.
pub(crate) const ALIKE: usize = 7;

/// In which ways an A/A pair is like what is compared, the nearest first: it is the pair of that series itself, of its operation at such a server, of its operation, of its metric at such a
/// server, of its metric, at such a server, of the bench. What they are is said by operation, series and metric. (A carrier that is noisy says nothing of another one that is not.)
pub(crate) fn alike<M: PartialEq>(first: (&str, &str, M), compared: (&str, &str, M)) -> [bool; ALIKE] {
    let (op, metric) = (first.0 == compared.0, first.2 == compared.2);
    let at = ServerLoad::of(first.1) == ServerLoad::of(compared.1);
    let is_its_own = metric && op && first.1 == compared.1;
    [is_its_own, metric && op && at, metric && op, metric && at, metric, at, true]
}
