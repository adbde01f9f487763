//! The targets over their corpus, and over mutations of it that follow a seed.

use std::fs;
use std::path::PathBuf;

use super::{TARGETS, Target};
use crate::testkit::random::{Random, amount, each_seed};

/// Writes the corpus if it is 1.
const WRITE: &str = "FABRICAST_WRITE_CORPUS";
/// The longest program of a seed.
const PROGRAM_LEN: usize = 160;

/// Programs of random steps for the targets of readers, whose steps are numbered up to `choices`, behind `head` bytes that say which.
pub(super) fn programs(choices: u8, head: usize) -> Vec<Vec<u8>> {
    (0..12_u8).map(|seed| program(&mut Random::new(seed.into()), choices, (head, seed))).collect()
}

fn program(random: &mut Random, choices: u8, (head, way): (usize, u8)) -> Vec<u8> {
    let mut bytes = vec![way; head];
    while bytes.len() < PROGRAM_LEN {
        let step = u8::try_from(random.below(choices.into())).unwrap();
        bytes.push(step);
        let arguments = random.index(4);
        bytes.extend((0..arguments).map(|_| random.next().to_le_bytes()[0]));
    }
    bytes
}

fn corpus(target: &Target) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target.name)
}

/// All inputs of a target's corpus, in the order of their names.
fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(corpus(target)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// `FABRICAST_WRITE_CORPUS=1` makes the corpus hold them.
#[test]
fn corpus_holds_what_the_encoders_write() {
    for target in TARGETS {
        let seeds = (target.seeds)();
        if std::env::var(WRITE).is_ok_and(|value| value == "1") {
            if cfg!(not(feature = "verbs")) {
                panic!("without verbs some inputs are missing: --all-features");
            }
            fs::create_dir_all(corpus(target)).unwrap();
            for (number, seed) in seeds.iter().enumerate() {
                fs::write(corpus(target).join(format!("made-{number:02}")), seed).unwrap();
            }
        }
        let inputs = inputs(target);
        for (number, seed) in seeds.iter().enumerate() {
            assert!(inputs.contains(seed), "{}, input {number}: {WRITE}=1 writes it", target.name);
        }
    }
}

#[test]
fn targets_accept_their_corpus() {
    for target in TARGETS {
        let inputs = inputs(target);
        assert!(!inputs.is_empty(), "no corpus of {}", target.name);
        inputs.iter().for_each(|input| (target.run)(input));
    }
}

#[test]
fn targets_accept_mutations_of_their_corpus() {
    let inputs: Vec<Vec<Vec<u8>>> = TARGETS.iter().map(inputs).collect();
    each_seed(amount(300, 20_000), |seed| {
        for (target, inputs) in TARGETS.iter().zip(&inputs) {
            let mut random = Random::new(seed);
            let input = mutated(inputs, &mut random);
            let _printed = crate::testkit::random::Printed::on_failure(target.name, &input);
            (target.run)(&input);
        }
    });
}

/// One of the inputs with a few bytes changed, removed, added, or joined to another one.
fn mutated(inputs: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = inputs[random.index(inputs.len())].clone();
    for _ in 0..1 + random.below(6) {
        let at = random.index(input.len() + 1);
        match random.below(5) {
            0 if at < input.len() => input[at] ^= 1 << random.below(8),
            1 if at < input.len() => input[at] = random.next().to_le_bytes()[0],
            2 => input.truncate(at),
            3 => input.insert(at, random.next().to_le_bytes()[0]),
            _ => {
                let other = &inputs[random.index(inputs.len())];
                let from = random.index(other.len() + 1);
                input.truncate(at);
                input.extend(&other[from..]);
            }
        }
    }
    input.truncate(8192);
    input
}
