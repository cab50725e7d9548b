//! CPF: the number of a person in Brazil, eleven digits of which the last two check the others.
//! Invariant: a [`Cpf`] that exists has valid check digits; equal numbers are equal however they were written.
//! Never: shows the number in an error.

/// The longest text that is looked at: eleven digits and room for punctuation.
pub const CPF_TEXT_MAX: usize = 32;

const DIGITS: usize = 11;

/// A number that passes its checks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cpf([u8; DIGITS]);

/// Why a text is no CPF.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCpf {
    /// Something else than digits, dots and dashes.
    #[error("11 digits, with or without punctuation, such as 529.982.247-25; it holds other characters")]
    Characters,
    /// Not eleven digits.
    #[error("11 digits, with or without punctuation, such as 529.982.247-25; it has {found}")]
    Length {
        /// How many there are.
        found: usize,
    },
    /// The last two digits do not fit the others, or all are the same.
    #[error("a CPF that exists: its check digits are wrong")]
    CheckDigits,
}

impl Cpf {
    /// Reads a number, punctuation allowed.
    pub fn parse(text: &str) -> Result<Cpf, BadCpf> {
        if text.len() > CPF_TEXT_MAX {
            return Err(BadCpf::Length { found: text.chars().filter(char::is_ascii_digit).count() });
        }
        if !text.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | '-')) {
            return Err(BadCpf::Characters);
        }
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_digit).map(|digit| digit - b'0').collect();
        let digits: [u8; DIGITS] = digits.try_into().map_err(|found: Vec<u8>| BadCpf::Length { found: found.len() })?;
        let is_one_digit = digits.iter().all(|digit| *digit == digits[0]);
        let is_checked = check_digit(&digits[..9]) == digits[9] && check_digit(&digits[..10]) == digits[10];
        // Eleven times the same digit passes the arithmetic, but nobody was ever given such a number.
        if is_checked && !is_one_digit { Ok(Cpf(digits)) } else { Err(BadCpf::CheckDigits) }
    }

    /// The eleven digits.
    pub fn digits(&self) -> String {
        self.0.iter().map(|digit| char::from(b'0' + digit)).collect()
    }
}

/// Weights count down to 2; the rest of eleven counts, and what is left of it above nine is nought.
fn check_digit(digits: &[u8]) -> u8 {
    let weights = (2..=digits.len() as u32 + 1).rev();
    let sum: u32 = digits.iter().zip(weights).map(|(digit, weight)| u32::from(*digit) * weight).sum();
    match 11 - sum % 11 {
        digit @ 0..=9 => digit as u8,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_is_known_however_it_is_written() {
        for text in ["52998224725", "529.982.247-25", "529982247-25", "529-982-247-25"] {
            assert_eq!(Cpf::parse(text).map(|cpf| cpf.digits()).as_deref(), Ok("52998224725"), "{text}");
        }
        // A check digit of nought, by a rest of ten and of eleven.
        for text in ["11144477735", "12345678909", "00000000191"] {
            assert!(Cpf::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_the_number() {
        let long = "5".repeat(10_000);
        for (text, problem) in [
            ("52998224724", BadCpf::CheckDigits),
            ("52998224735", BadCpf::CheckDigits),
            ("11111111111", BadCpf::CheckDigits),
            ("00000000000", BadCpf::CheckDigits),
            ("5299822472", BadCpf::Length { found: 10 }),
            ("529982247255", BadCpf::Length { found: 12 }),
            ("", BadCpf::Length { found: 0 }),
            ("529 982 247 25", BadCpf::Characters),
            ("5299822472x", BadCpf::Characters),
            ("５２９９８２２４７２５", BadCpf::Length { found: 0 }),
            (&long, BadCpf::Length { found: 10_000 }),
        ] {
            assert_eq!(Cpf::parse(text).map(|_| ()), Err(problem.clone()), "{text}");
            assert!(!problem.to_string().contains("52998224724"));
        }
    }

    proptest! {
        #[test]
        fn of_a_hundred_endings_one_fits(base in 1u32..1_000_000_000) {
            prop_assume!(base % 111_111_111 != 0);
            let fits = (0..100).filter(|ending| Cpf::parse(&format!("{base:09}{ending:02}")).is_ok()).count();
            prop_assert_eq!(fits, 1);
        }
    }
}
