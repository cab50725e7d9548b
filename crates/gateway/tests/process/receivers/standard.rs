//! Our headers in the eyes of others: `standardwebhooks` from PyPI, and nothing but HMAC.

use entrega_testkit::tool;
use std::io::Write as _;
use std::process::{Command, Stdio};

use entrega_call::Clock;
use entrega_core::webhook::{WebhookSecret, sign, sign_standard, sign_standard_all};
use serde_json::{Value, json};

use super::programs::Language;

/// Answers what the library makes of each case, and then what plain HMAC makes of the body's signature.
const JUDGE: &str = r#"
import base64, hashlib, hmac, json, sys
from standardwebhooks import Webhook, WebhookVerificationError

def accepts(secret, body, headers):
    try:
        Webhook(secret).verify(body, headers, json_parse=False)
        return True
    except WebhookVerificationError as error:
        return str(error)

verdicts = []
for case in json.load(sys.stdin):
    body = base64.b64decode(case["body"])
    secret = base64.b64decode(case["key"]) if "key" in case else case["secret"]
    made = "sha256=" + hmac.new(case["secret"].encode(), body, hashlib.sha256).hexdigest()
    verdicts.append([accepts(secret, body, case["headers"]), hmac.compare_digest(made, case["x_signature"])])
print(json.dumps(verdicts))
"#;

fn judge(cases: &Value) -> Value {
    let mut child = Command::new(tool::python())
        .args(["-c", JUDGE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| {
            panic!("{} does not run: {error}; `cargo xtask test` installs it", tool::python().display())
        });
    child.stdin.take().unwrap().write_all(cases.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// A case for the judge: `body` arrives, after `signed` was signed.
fn case(secrets: &[WebhookSecret], reader: &WebhookSecret, signed: &[u8], body: &[u8]) -> Value {
    let seconds = Clock::system().now().as_millis() / 1000;
    json!({
        "secret": reader.expose(),
        "body": base64(body),
        "x_signature": sign(&secrets[0], signed),
        "headers": {
            "webhook-id": "evt_1",
            "webhook-timestamp": seconds.to_string(),
            "webhook-signature": sign_standard_all(secrets, "evt_1", seconds, signed),
        },
    })
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn made() -> WebhookSecret {
    WebhookSecret::from_random(entrega::chance::secret_bytes())
}

#[test]
fn a_foreign_library_accepts_our_headers_and_refuses_one_flipped_byte() {
    if Language::Python.is_left_out() {
        return;
    }
    let body = r#"{"eventType":"email.sent","data":{"companyId":"Açaí 🚚"}}"#.as_bytes();
    let mut flipped = body.to_vec();
    flipped[2] ^= 1;
    let (ours, other) = ([made()], made());
    let mut old = case(&ours, &ours[0], body, body);
    old["headers"]["webhook-timestamp"] = json!("1614265330");
    old["headers"]["webhook-signature"] = json!(sign_standard(&ours[0], "evt_1", 1_614_265_330, body));
    let cases = json!([
        case(&ours, &ours[0], body, body),
        case(&ours, &ours[0], body, &flipped),
        case(&ours, &other, body, body),
        old,
    ]);
    let refused = "No matching signature found";
    let expected = json!([[true, true], [refused, false], [refused, false], ["Message timestamp too old", true]]);
    assert_eq!(judge(&cases), expected);
}

#[test]
fn a_foreign_library_that_knows_either_secret_of_a_rotation_accepts_our_headers() {
    if Language::Python.is_left_out() {
        return;
    }
    let both = [made(), made()];
    let cases = json!([case(&both, &both[0], b"{}", b"{}"), case(&both, &both[1], b"{}", b"{}")]);
    assert_eq!(judge(&cases), json!([[true, true], [true, false]]), "the newest alone signs the body by itself");
}

/// The documented way for a secret that is not `whsec_` and base64: the library gets its bytes.
#[test]
fn a_secret_of_another_form_is_given_to_a_foreign_library_as_bytes() {
    if Language::Python.is_left_out() {
        return;
    }
    let plain: WebhookSecret = "a-secret-from-elsewhere!".parse().unwrap();
    let mut case = case(std::slice::from_ref(&plain), &plain, b"{}", b"{}");
    case["key"] = json!(base64(plain.expose().as_bytes()));
    assert_eq!(judge(&json!([case])), json!([[true, true]]));
}
