//! Signatures against published vectors, and against everything that was changed by one byte.

use proptest::prelude::*;

use super::*;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
const SIGNED_AT: u64 = 1_614_265_330;
const BODY: &[u8] = br#"{"test": 2432232314}"#;
const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

fn secret(text: &str) -> WebhookSecret {
    text.parse().unwrap()
}

fn headers<'a>(id: &'a str, timestamp: &'a str, signature: &'a str) -> StandardHeaders<'a> {
    StandardHeaders { id: Some(id), timestamp: Some(timestamp), signature: Some(signature) }
}

fn check(signature: &str) -> Result<(), BadSignature> {
    verify_standard(&[secret(SECRET)], &headers(ID, "1614265330", signature), BODY, None)
}

fn check_at(now_seconds: u64) -> Result<(), BadSignature> {
    let freshness = Freshness { now: Time::from_millis(now_seconds * 1000), tolerance: Duration::from_secs(300) };
    verify_standard(&[secret(SECRET)], &headers(ID, "1614265330", SIGNATURE), BODY, Some(freshness))
}

#[test]
fn the_vector_of_standard_webhooks_comes_out_and_is_accepted() {
    assert_eq!(sign_standard(&secret(SECRET), ID, SIGNED_AT, BODY), SIGNATURE);
    assert_eq!(check(SIGNATURE), Ok(()));
}

#[test]
fn the_signature_of_a_body_is_what_openssl_makes_of_it() {
    let signature = sign(&secret(SECRET), BODY);
    assert_eq!(signature, "sha256=80ec8a89ce3cd22133a1066caecb4d04fea7467657c8514d717ec42c38a5c94c");
    assert_eq!(verify(&[secret(SECRET)], BODY, Some(&signature)), Ok(()));
    assert_eq!(verify(&[secret(SECRET)], BODY, Some(&signature.to_uppercase().replace("SHA", "sha"))), Ok(()));
}

#[test]
fn every_flipped_bit_of_a_body_is_noticed() {
    let signature = sign(&secret(SECRET), BODY);
    for bit in 0..BODY.len() * 8 {
        let mut body = BODY.to_vec();
        body[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(verify(&[secret(SECRET)], &body, Some(&signature)), Err(BadSignature::Mismatch), "bit {bit}");
        let standard = verify_standard(&[secret(SECRET)], &headers(ID, "1614265330", SIGNATURE), &body, None);
        assert_eq!(standard, Err(BadSignature::Mismatch), "bit {bit}");
    }
}

#[test]
fn another_id_another_time_and_another_secret_do_not_fit() {
    let other = [secret("whsec_AfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")];
    let mismatch = Err(BadSignature::Mismatch);
    assert_eq!(verify_standard(&other, &headers(ID, "1614265330", SIGNATURE), BODY, None), mismatch);
    assert_eq!(verify(&other, BODY, Some(&sign(&secret(SECRET), BODY))), mismatch);
    let ours = [secret(SECRET)];
    assert_eq!(verify_standard(&ours, &headers("msg_other", "1614265330", SIGNATURE), BODY, None), mismatch);
    assert_eq!(verify_standard(&ours, &headers(ID, "1614265331", SIGNATURE), BODY, None), mismatch);
    assert_eq!(verify(&[], BODY, Some(&sign(&ours[0], BODY))), mismatch);
}

/// What is signed is `id.timestamp.body`. With full stops in ids, a genuine call for `evt_1` at 16 with the body `17.{}`
/// could be shown again as one for `evt_1.16` at 17 with the body `{}`.
#[test]
fn a_part_of_the_body_cannot_pass_for_the_time() {
    let signature = sign_standard(&secret(SECRET), "evt_1", 16, b"17.{}");
    let moved = verify_standard(&[secret(SECRET)], &headers("evt_1.16", "17", &signature), b"{}", None);
    assert!(matches!(moved, Err(BadSignature::Malformed { header: WEBHOOK_ID, .. })), "{moved:?}");
}

#[test]
fn during_a_rotation_either_secret_is_enough() {
    let (old, new) = (secret("an-old-secret-of-ours"), secret(SECRET));
    let both = [new, old.clone()];
    let signature = sign_standard_all(&both, ID, SIGNED_AT, BODY);
    assert_eq!(signature, format!("{SIGNATURE} {}", sign_standard(&old, ID, SIGNED_AT, BODY)));
    for known in [&both[..1], &both[1..], &both] {
        assert_eq!(verify_standard(known, &headers(ID, "1614265330", &signature), BODY, None), Ok(()));
    }
    for signer in &both {
        assert_eq!(verify(&both, BODY, Some(&sign(signer, BODY))), Ok(()));
    }
}

#[test]
fn signatures_of_other_versions_and_broken_ones_are_passed_over() {
    assert_eq!(check(&format!("v1a,AAAA v1,short  {SIGNATURE}")), Ok(()));
    assert_eq!(check(&format!("v2,{} v1,{}", &SIGNATURE[3..], BASE64.encode([0; 32]))), Err(BadSignature::Mismatch));
    let late = format!("{}{SIGNATURE}", "v2,x ".repeat(SIGNATURES_MAX));
    assert!(check(&late).is_err(), "looked at more than {SIGNATURES_MAX}");
}

#[test]
fn an_error_names_the_header_and_what_would_be_right() {
    let verified = |header| verify(&[secret(SECRET)], BODY, header).unwrap_err().to_string();
    for nothing in [None, Some(""), Some("  ")] {
        assert_eq!(verified(nothing), "the header X-Signature is missing");
    }
    let digits = "0".repeat(64);
    for wrong in [&digits, "sha256=", "sha256=00", &format!("sha256={}", &digits[1..]), &format!("sha256=+f{digits}")] {
        let expected = "the header X-Signature is malformed; it should be sha256= and 64 hexadecimal digits";
        assert_eq!(verified(Some(wrong)), expected, "{wrong}");
    }
    let standard = |headers| verify_standard(&[secret(SECRET)], &headers, BODY, None).unwrap_err().to_string();
    let good = headers(ID, "1614265330", SIGNATURE);
    for (wrong, told) in [
        (StandardHeaders { id: None, ..good }, "the header webhook-id is missing"),
        (StandardHeaders { timestamp: None, ..good }, "the header webhook-timestamp is missing"),
        (StandardHeaders { signature: None, ..good }, "the header webhook-signature is missing"),
        (headers("two words", "1614265330", SIGNATURE), "the header webhook-id is malformed"),
        (headers(ID, "+1614265330", SIGNATURE), "the header webhook-timestamp is malformed"),
        (headers(ID, "99999999999999999999", SIGNATURE), "the header webhook-timestamp is malformed"),
        (headers(ID, "1614265330", "v1,!"), "the header webhook-signature is malformed"),
        (headers(ID, "1614265330", "v2,AAAA"), "the header webhook-signature is malformed"),
    ] {
        assert!(standard(wrong).starts_with(told), "{}: {told}", standard(wrong));
    }
}

#[test]
fn a_signature_may_be_as_old_and_as_new_as_is_tolerated() {
    assert_eq!(check_at(SIGNED_AT + 300), Ok(()));
    assert_eq!(check_at(SIGNED_AT - 300), Ok(()));
    let old = check_at(SIGNED_AT + 301).unwrap_err();
    assert!(matches!(old, BadSignature::TooOld { .. }), "{old}");
    assert_eq!(old.to_string(), "it was signed 301s ago, and 5m are allowed");
    let new = check_at(SIGNED_AT - 301).unwrap_err();
    assert!(matches!(new, BadSignature::TooNew { .. }), "{new}");
}

#[test]
fn too_old_is_said_of_genuine_calls_only() {
    let freshness = Freshness { now: Time::from_millis(u64::MAX), tolerance: Duration::ZERO };
    let forged = headers("msg_other", "1614265330", SIGNATURE);
    assert_eq!(verify_standard(&[secret(SECRET)], &forged, BODY, Some(freshness)), Err(BadSignature::Mismatch));
}

#[test]
fn a_secret_of_another_form_is_its_own_key() {
    let plain = secret("not base64: no, really".replace([' ', ':'], "-").as_str());
    assert_eq!(&*plain.standard_key(), plain.expose().as_bytes());
    let odd = secret("whsec_-----------");
    assert_eq!(&*odd.standard_key(), odd.expose().as_bytes());
    assert_eq!(secret(SECRET).standard_key().len(), 24);
    for (text, how) in [("c2VjcmV0LWtleQ==", "padded"), ("c2VjcmV0LWtleQ", "bare"), ("c2VjcmV0LWtleR", "bits left")] {
        assert_eq!(&*secret(&format!("whsec_{text}")).standard_key(), b"secret-key", "{how}");
    }
}

#[test]
fn a_secret_has_16_to_128_visible_characters() {
    for length in [16, 128] {
        assert!("x".repeat(length).parse::<WebhookSecret>().is_ok(), "{length}");
    }
    for length in [0, 15, 129] {
        assert_eq!("x".repeat(length).parse::<WebhookSecret>(), Err(BadSecret::Length { length }));
    }
    for text in ["whsec_with a space in it", "whsec_with\ttab_in_it", "whsec_çedilha_in_it"] {
        assert_eq!(text.parse::<WebhookSecret>(), Err(BadSecret::Character));
    }
}

#[test]
fn nothing_of_a_secret_is_shown() {
    assert_eq!(format!("{:?}", secret(SECRET)), "WebhookSecret(***)");
    let told = "short-secret".parse::<WebhookSecret>().unwrap_err().to_string();
    assert!(!told.contains("short-secret"), "{told}");
}

proptest! {
    #[test]
    fn a_made_secret_is_whsec_and_32_alphanumerics(bytes in prop::array::uniform32(any::<u16>())) {
        let bytes: Vec<u8> = bytes.iter().flat_map(|number| number.to_le_bytes()).collect();
        let made = WebhookSecret::from_random(bytes.try_into().unwrap());
        let rest = made.expose().strip_prefix("whsec_").unwrap();
        prop_assert!(rest.len() == 32 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{rest}");
        prop_assert_eq!(made.standard_key().len(), 24);
        prop_assert_eq!(&made, &secret(made.expose()));
    }

    #[test]
    fn every_two_bytes_make_a_character_of_their_own(bytes in prop::array::uniform32(any::<u16>()), at in 0usize..32) {
        let make = |numbers: [u16; 32]| {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            WebhookSecret::from_random(bytes.try_into().unwrap())
        };
        let mut other = bytes;
        other[at] = other[at].wrapping_add(1) % 62;
        let is_same = other[at] % 62 == bytes[at] % 62;
        prop_assert_eq!(make(bytes) == make(other), is_same);
    }

    #[test]
    fn what_is_signed_is_accepted(text in "[!-~]{16,128}", id in "[a-zA-Z0-9_]{1,64}", seconds: u64, body: Vec<u8>) {
        let secrets = [secret(&text)];
        prop_assert_eq!(verify(&secrets, &body, Some(&sign(&secrets[0], &body))), Ok(()));
        let signature = sign_standard(&secrets[0], &id, seconds, &body);
        let timestamp = seconds.to_string();
        prop_assert_eq!(verify_standard(&secrets, &headers(&id, &timestamp, &signature), &body, None), Ok(()));
    }

    #[test]
    fn no_header_is_accepted_by_chance_or_breaks_the_check(header: String, body: Vec<u8>) {
        prop_assert!(verify(&[secret(SECRET)], &body, Some(&header)).is_err());
        for given in [headers(&header, "1", SIGNATURE), headers(ID, &header, SIGNATURE), headers(ID, "1", &header)] {
            prop_assert!(verify_standard(&[secret(SECRET)], &given, &body, None).is_err());
        }
    }
}
