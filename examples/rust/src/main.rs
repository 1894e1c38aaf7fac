//! Fits a line to a curve by gradient descent with momentum, saves every step, and goes on where it was after any kill.
//! Usage: fit FOLDER STEPS
//!
//! Deterministic: however often it was killed, it ends with the same checksum.
mod neve;

use std::io::Write;

const TERMS: usize = 8;
const SAMPLES: usize = 64;

fn train(terms: &mut [f64], speed: &mut [f64], step: &mut [f64]) -> f64 {
    let mut gradient = [0.0; TERMS];
    let mut loss = 0.0;
    for i in 0..SAMPLES {
        let x = (i as f64 * 0.618033988749895 + step[0] * 0.1) % 1.0;
        let miss = terms.iter().rev().fold(0.0, |found, term| found * x + term) - x * (1.0 - x) * 4.0;
        loss += miss * miss / SAMPLES as f64;
        let mut power = 1.0;
        for slope in gradient.iter_mut() {
            *slope += 2.0 * miss * power / SAMPLES as f64;
            power *= x;
        }
    }
    for k in 0..TERMS {
        speed[k] = 0.9 * speed[k] - 0.05 * gradient[k];
        terms[k] += speed[k];
    }
    step[0] += 1.0;
    loss
}

fn run(folder: &str, steps: f64) -> Result<(), neve::Error> {
    let (mut terms, mut speed, mut step) = ([0.0; TERMS], [0.0; TERMS], [0.0]);
    let state = neve::State::new(&[("terms", TERMS), ("speed", TERMS), ("step", 1)])?;
    let engine = neve::Engine::open(folder)?;
    match engine.restore(&state, &mut [&mut terms, &mut speed, &mut step]) {
        Ok(()) => println!("restored step {}", step[0]),
        Err(error) if error.code == neve::NOT_FOUND => {}
        Err(error) => return Err(error),
    }
    while step[0] < steps {
        let loss = train(&mut terms, &mut speed, &mut step);
        let ticket = engine.save(step[0] as u64, &state, &[&terms, &speed, &step])?;
        if step[0] % 100.0 == 0.0 {
            ticket.wait("file", 60.0)?;
        }
        println!("step {} loss {:.6}", step[0], loss);
        std::io::stdout().flush().expect("standard output");
    }
    let sum = terms.iter().chain(&speed).chain(&step).fold(1469598103934665603u64, |sum, value| {
        (sum ^ value.to_bits()).wrapping_mul(1099511628211)
    });
    println!("checksum {sum:016x}");
    engine.close()
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let steps = arguments.get(2).and_then(|text| text.parse().ok());
    let (true, Some(steps)) = (arguments.len() == 3, steps) else {
        eprintln!("usage: fit FOLDER STEPS");
        std::process::exit(2);
    };
    if let Err(error) = run(&arguments[1], steps) {
        eprintln!("fit: {error}");
        std::process::exit(1);
    }
}
