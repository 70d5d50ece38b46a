//! The least that still fails: faults are left out one at a time, and the run is shortened, as long as it fails.

/// Something that can be made smaller.
pub(super) trait Shrink: Clone {
    /// What is a little less than this, the best first.
    fn less(&self) -> Vec<Self>;
}

/// The smallest of what is tried, with so many trials at most, of which `fails` says that it fails as well.
pub(super) fn shrink<T: Shrink>(from: &T, trials: usize, mut fails: impl FnMut(&T) -> bool) -> T {
    let mut smallest = from.clone();
    let mut left = trials;
    'again: loop {
        for less in smallest.less() {
            if left == 0 {
                return smallest;
            }
            left -= 1;
            if fails(&less) {
                smallest = less;
                continue 'again;
            }
        }
        return smallest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Shrink for Vec<u32> {
        fn less(&self) -> Vec<Self> {
            let without = |n| self.iter().enumerate().filter(|(m, _)| *m != n).map(|(_, x)| *x).collect();
            (0..self.len()).map(without).collect()
        }
    }

    #[test]
    fn what_does_not_matter_is_left_out() {
        let fails = |list: &Vec<u32>| list.contains(&3) && list.contains(&7);
        assert_eq!(shrink(&(0..10).collect(), 1000, fails), [3, 7]);
        assert_eq!(shrink(&vec![3, 7, 9], 0, fails), [3, 7, 9], "no trial is left");
    }
}
