//! Masking: addresses as they may stand in logs, webhooks and metrics.
//! Invariant: of an address no more is shown than the first character of its local part, and of the domain's name, which
//! is all before its last dot, the first and the last two; a name under four characters keeps only its first.
//! Never: masks what is stored or sent.

const HIDDEN: &str = "***";

/// `john@example.com` → `j***@e***le.com`.
pub fn mask_address(address: &str) -> String {
    let Some((local, domain)) = address.rsplit_once('@') else { return HIDDEN.into() };
    let (name, rest) = match domain.rsplit_once('.') {
        Some((name, rest)) => (name, format!(".{rest}")),
        None => (domain, String::new()),
    };
    format!("{}{HIDDEN}@{}{rest}", first(local), mask_name(name))
}

fn first(text: &str) -> String {
    text.chars().next().map(String::from).unwrap_or_default()
}

fn mask_name(name: &str) -> String {
    let length = name.chars().count();
    match length < 4 {
        true => format!("{}{HIDDEN}", first(name)),
        false => format!("{}{HIDDEN}{}", first(name), name.chars().skip(length - 2).collect::<String>()),
    }
}

/// A value that is somebody's own, such as a number: of more than four characters the last two are shown.
pub fn mask_value(value: &str) -> String {
    let length = value.chars().count();
    let shown = if length > 4 { 2 } else { 0 };
    "*".repeat(length - shown) + &value.chars().skip(length - shown).collect::<String>()
}

/// A text, such as a server's reply, with every address in it masked.
pub fn mask_text(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('@') {
        let start = rest[..at].rfind(|c| !is_of_local_part(c)).map_or(0, |end| end + char_length(rest, end));
        let domain_end = rest[at + 1..].find(|c| !is_of_domain(c)).map_or(rest.len(), |end| at + 1 + end);
        // The full stop that ends a sentence is not the domain's.
        let end = at + 1 + rest[at + 1..domain_end].trim_end_matches(['.', '-']).len();
        match start < at && end > at + 1 {
            true => {
                masked.push_str(&rest[..start]);
                masked.push_str(&mask_address(&rest[start..end]));
                rest = &rest[end..];
            }
            false => {
                masked.push_str(&rest[..=at]);
                rest = &rest[at + 1..];
            }
        }
    }
    masked.push_str(rest);
    masked
}

fn char_length(text: &str, at: usize) -> usize {
    text[at..].chars().next().map_or(1, char::len_utf8)
}

fn is_of_local_part(c: char) -> bool {
    c.is_alphanumeric() || "!#$%&'*+-/=?^_`{|}~.".contains(c)
}

fn is_of_domain(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn of_a_value_the_end_is_shown_if_it_is_long() {
        for (value, masked) in [("52998224725", "*********25"), ("12345", "***45"), ("1234", "****"), ("", "")] {
            assert_eq!(mask_value(value), masked);
        }
    }

    #[test]
    fn addresses_are_masked_as_promised() {
        for (address, masked) in [
            ("john@example.com", "j***@e***le.com"),
            ("a@ab.com", "a***@a***.com"),
            ("a@abc.co.uk", "a***@a***co.uk"),
            ("john@mail.smallfirm.com", "j***@m***rm.com"),
            ("x.y+z@abcd.org", "x***@a***cd.org"),
            ("érica@münchen.de", "é***@m***en.de"),
            ("root@localhost", "r***@l***st"),
            ("not an address", "***"),
            ("@", "***@***"),
        ] {
            assert_eq!(mask_address(address), masked, "{address}");
        }
    }

    #[test]
    fn addresses_inside_a_text_are_masked_and_the_rest_stays() {
        for (text, masked) in [
            ("550 <john@example.com>: no such user.", "550 <j***@e***le.com>: no such user."),
            ("ask john@example.com. Or b@c.io, now", "ask j***@e***le.com. Or b***@c***.io, now"),
            ("no address @ all", "no address @ all"),
            ("2 of 3 recipients: é@ümläut.de: 450", "2 of 3 recipients: é***@ü***ut.de: 450"),
            ("", ""),
        ] {
            assert_eq!(mask_text(text), masked, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_local_part_longer_than_one_survives(local in "[a-z]{2,12}", domain in "[a-z]{4,10}\\.com", before in "[a-z <:]{0,8}") {
            let text = format!("{before} <{local}@{domain}> refused");
            let (masked, local_part) = (mask_text(&text), format!("{local}@"));
            prop_assert!(!masked.contains(&local_part) && !masked.contains(&domain));
        }

        #[test]
        fn any_text_can_be_masked(text: String) {
            mask_text(&text);
            mask_address(&text);
        }
    }
}
