//! The distributions by their known figures, beyond what the golden streams show.

use proptest::prelude::*;
use remanence_ycsb::distribution::{Discrete, Exponential, Hotspot, Sequential, Uniform};
use remanence_ycsb::random::Seeded;
use remanence_ycsb::zipfian::{Latest, SCRAMBLED_ZETA, Scrambled, Zipfian, zeta};

const DRAWS: usize = 200_000;

/// The share of the most frequent of `items` items.
fn hottest(items: usize, mut draw: impl FnMut() -> u64) -> f64 {
    let mut counts = vec![0_u32; items];
    for _ in 0..DRAWS {
        counts[draw() as usize] += 1;
    }
    f64::from(*counts.iter().max().unwrap()) / DRAWS as f64
}

fn near(value: f64, expected: f64) {
    // Ten standard deviations of a share among so many draws.
    let deviation = (expected * (1.0 - expected) / DRAWS as f64).sqrt();
    assert!((value - expected).abs() < 10.0 * deviation, "{value} is not {expected}");
}

#[test]
fn the_hottest_record_of_a_scrambled_zipf_takes_378_of_10000_operations() {
    // 1 / 26.469, whatever the number of records: unlike a plain Zipf over as many.
    assert!((1.0 / SCRAMBLED_ZETA - 0.0378).abs() < 0.000_05);
    for items in [1000, 100_000] {
        let (mut ranks, mut random) = (Scrambled::new(0, items - 1), Seeded::new(5, 0));
        let share = hottest(items as usize, || ranks.next(&mut random));
        // Colder ranks hash to the same record, the more so the fewer there are.
        assert!((0.0360..0.0450).contains(&share), "{share}");
    }
}

#[test]
fn a_plain_zipf_is_hotter_the_fewer_items_it_has() {
    for (items, expected) in [(1000, 0.129), (1_000_000, 0.0650)] {
        let (mut ranks, mut random) = (Zipfian::new(items), Seeded::new(6, 0));
        assert!((1.0 / ranks.zeta() - expected).abs() < 0.0005, "{}", 1.0 / ranks.zeta());
        let exact = 1.0 / ranks.zeta();
        near(hottest(items as usize, || ranks.next(&mut random)), exact);
    }
}

#[test]
fn latest_is_hottest_at_the_newest_and_follows_it() {
    let (mut records, mut random) = (Latest::new(999), Seeded::new(7, 0));
    for newest in [999, 1500] {
        let mut counts = vec![0; 2000];
        for _ in 0..20_000 {
            counts[records.next(newest, &mut random) as usize] += 1;
        }
        let top = (0..2000).max_by_key(|&item| counts[item]).unwrap();
        assert_eq!(top as u64, newest);
        assert_eq!(counts[0], 0, "the first record is never asked for");
        assert!(
            counts[newest as usize + 1..].iter().all(|&count| count == 0),
            "what is not there is not asked for"
        );
    }
}

#[test]
fn a_hotspot_takes_its_share() {
    let (records, mut random) = (Hotspot::new(100, 1099, 0.2, 0.8), Seeded::new(8, 0));
    let mut hot = 0;
    for _ in 0..DRAWS {
        let record = records.next(&mut random);
        assert!((100..1100).contains(&record));
        hot += u32::from(record < 300);
    }
    near(f64::from(hot) / DRAWS as f64, 0.8);
    // Sets without items do not divide by zero.
    for (items, share) in [(0.0, 1.0), (1.0, 0.0), (2.0, -1.0)] {
        let records = Hotspot::new(0, 9, items, share);
        assert!((0..100).all(|_| records.next(&mut random) < 10));
    }
}

#[test]
fn an_exponential_keeps_its_percentile_and_mean() {
    let (ages, mut random) = (Exponential::new(95.0, 1000.0), Seeded::new(9, 0));
    let draws: Vec<f64> = (0..DRAWS).map(|_| ages.next(&mut random)).collect();
    near(draws.iter().filter(|age| **age < 1000.0).count() as f64 / DRAWS as f64, 0.95);
    let mean = draws.iter().sum::<f64>() / DRAWS as f64;
    assert!((mean / ages.mean() - 1.0).abs() < 0.02, "{mean}");
}

#[test]
fn a_mix_keeps_its_weights() {
    let (mix, mut random) = (Discrete::new(&[(95.0, 'r'), (0.0, 'x'), (5.0, 'u')]), Seeded::new(10, 0));
    let draws: Vec<char> = (0..DRAWS).map(|_| mix.next(&mut random).unwrap()).collect();
    assert!(!draws.contains(&'x'));
    near(draws.iter().filter(|kind| **kind == 'u').count() as f64 / DRAWS as f64, 0.05);
    assert_eq!(Discrete::<char>::new(&[]).next(&mut random), None);
}

#[test]
fn sequential_goes_round() {
    let mut records = Sequential::new(3, 5);
    assert_eq!((0..7).map(|_| records.next()).collect::<Vec<_>>(), [3, 4, 5, 3, 4, 5, 3]);
}

proptest! {
    /// What is summed in steps is what is summed at once, to the last bit: threads that saw other counts agree.
    #[test]
    fn zeta_in_steps_is_zeta_at_once(a in 1_u64..2000, b in 0_u64..2000, theta in 0.1_f64..1.5) {
        let steps = zeta(a, a + b, theta, zeta(0, a, theta, 0.0));
        prop_assert_eq!(steps.to_bits(), zeta(0, a + b, theta, 0.0).to_bits());
    }

    #[test]
    fn draws_are_among_the_items(first in 0_u64..1000, items in 2_u64..5000, seed in any::<u64>()) {
        let mut random = Seeded::new(seed, 0);
        let range = first..first + items;
        let mut scrambled = Scrambled::new(first, first + items - 1);
        let uniform = Uniform::new(first, first + items - 1);
        let mut plain = Zipfian::with_theta(first, items, 0.99);
        for _ in 0..50 {
            prop_assert!(range.contains(&scrambled.next(&mut random)));
            prop_assert!(range.contains(&uniform.next(&mut random)));
            prop_assert!(range.contains(&plain.next(&mut random)));
        }
    }
}
