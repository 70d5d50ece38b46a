//! The least that still fails: faults are left out one at a time, and the run is shortened, as long as it fails.

/// The smallest of what is tried, with so many trials at most, of which `fails` says that it fails as well; `less` gives what is a little
/// less than something, the best first.
pub(super) fn shrink<T: Clone>(
    from: &T,
    trials: usize,
    less: impl Fn(&T) -> Vec<T>,
    mut fails: impl FnMut(&T) -> bool,
) -> T {
    let (mut smallest, mut left) = (from.clone(), trials);
    while let Some(smaller) = less(&smallest).into_iter().take(left).find(|less| {
        left -= 1;
        fails(less)
    }) {
        smallest = smaller;
    }
    smallest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_matter_is_left_out() {
        let less = |list: &Vec<u32>| {
            let without = |n| list.iter().enumerate().filter(|(m, _)| *m != n).map(|(_, x)| *x).collect();
            (0..list.len()).map(without).collect()
        };
        let fails = |list: &Vec<u32>| list.contains(&3) && list.contains(&7);
        assert_eq!(shrink(&(0..10).collect(), 1000, less, fails), [3, 7]);
        assert_eq!(shrink(&vec![3, 7, 9], 0, less, fails), [3, 7, 9], "no trial is left");
    }
}
