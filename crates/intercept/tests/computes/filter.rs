//! The filter hands over what its rules name, and nothing else.

use remanence_intercept::outside::filter::{
    ALLOW, AND, ARCHITECTURE, AT_ARCHITECTURE, AT_ARGUMENTS, AT_NUMBER, ArgumentFilter, EQUAL, HAND_OVER,
    Instruction, LOAD, MISSING, RETURN, Rule, filter,
};

/// What the kernel would do with a call.
fn verdict(filter: &[Instruction], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let mut description = [0; 64];
    let mut put = |at: u32, bytes: &[u8]| description[at as usize..][..bytes.len()].copy_from_slice(bytes);
    put(AT_NUMBER, &number.to_le_bytes());
    put(AT_ARCHITECTURE, &architecture.to_le_bytes());
    for (n, argument) in arguments.into_iter().enumerate() {
        put(AT_ARGUMENTS + 8 * n as u32, &argument.to_le_bytes());
    }
    let (mut word, mut at) = (0, 0);
    loop {
        let Instruction { code, then, otherwise, value } = filter[at];
        at += 1;
        match code {
            LOAD => {
                let bytes = &description[value as usize..][..4];
                word = u32::from_le_bytes(bytes.try_into().expect("four"));
            }
            AND => word &= value,
            EQUAL => at += usize::from(if word == value { then } else { otherwise }),
            RETURN => return value,
            other => panic!("no instruction {other:#x}"),
        }
    }
}

const RULES: [Rule; 4] = [
    Rule { number: 1, when: ArgumentFilter::Always },
    Rule { number: 9, when: ArgumentFilter::Argument { at: 3, mask: 0x2f, is: &[1, 3] } },
    Rule { number: 16, when: ArgumentFilter::Argument { at: 1, mask: u32::MAX, is: &[0x4004_9409] } },
    Rule { number: 74, when: ArgumentFilter::Always },
];

#[test]
fn each_number_is_handed_over_refused_or_left_alone() {
    let filter = filter(&RULES, &[425]).expect("it is short");
    for number in 0..70_000 {
        let expected = match number {
            1 | 74 => HAND_OVER,
            425 => MISSING,
            _ => ALLOW,
        };
        assert_eq!(verdict(&filter, ARCHITECTURE, number, [0; 6]), expected, "{number}");
        // Other tables of calls: what is 1 there is no write.
        assert_eq!(verdict(&filter, 0x4000_0003, number, [0; 6]), ALLOW);
        assert_eq!(verdict(&filter, ARCHITECTURE, number | 1 << 30, [0; 6]), ALLOW);
    }
}

#[test]
fn of_some_numbers_an_argument_decides_and_only_as_far_as_it_counts() {
    let filter = filter(&RULES, &[]).expect("it is short");
    let mapped = |flags: u64| verdict(&filter, ARCHITECTURE, 9, [7, 7, 7, flags, 7, 7]);
    for flags in 0..0x200_u64 {
        let expected = if matches!(flags & 0x2f, 1 | 3) { HAND_OVER } else { ALLOW };
        assert_eq!(mapped(flags), expected, "{flags:#x}");
        assert_eq!(mapped(flags | 0xffff_ffff_0000_0000), expected, "the high half does not count");
    }
    let control = |request: u64| verdict(&filter, ARCHITECTURE, 16, [0, request, 0, 0, 0, 0]);
    assert_eq!(control(0x4004_9409), HAND_OVER);
    assert_eq!(control(0xffff_ffff_4004_9409), HAND_OVER);
    assert_eq!(control(0x4004_9408), ALLOW);
}

#[test]
fn a_rule_with_more_values_than_a_jump_passes_is_none() {
    static MANY: [u32; 127] = [0; 127];
    let rule = |is| Rule { number: 1, when: ArgumentFilter::Argument { at: 0, mask: 0, is } };
    assert!(filter(&[rule(&MANY)], &[]).is_none());
    assert!(filter(&[rule(&MANY[..126])], &[]).is_some());
}
