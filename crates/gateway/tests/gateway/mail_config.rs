//! How mails leave, as an operator says it.

use entrega::mail::TransportKind;
use entrega::mail::smtp::SmtpTls;
use entrega_gateway::config::{Config, ConfigError, ConfigFile, ConfigSources};

fn load(toml: &str, env: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("entrega.toml");
    std::fs::write(&file, toml).unwrap();
    let env = env.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    Config::load(ConfigSources { file: ConfigFile::At(file), env, ..ConfigSources::default() })
}

fn names(config: &Config) -> Vec<&str> {
    config.mail.transports.iter().map(|transport| transport.name.as_str()).collect()
}

const TWO: &str =
    "[transports.zeta]\nurl = 'smtp://z.example.com'\n[transports.alpha]\nurl = 'smtps://a.example.com'\n";

#[test]
fn smtp_url_is_the_transport_main_and_wins_over_the_file() {
    let config = load("[transports.main]\nurl = 'smtp://file.example.com'\n", &[]).unwrap();
    assert_eq!(names(&config), ["main"]);
    let config = load(
        "[transports.main]\nurl = 'smtp://file.example.com'\n",
        &[
            ("SMTP_URL", "smtp://joe:s3cret@env.example.com"),
            ("ENTREGA_TRANSPORTS__MAIN__URL", "smtp://other.example.com"),
        ],
    )
    .unwrap();
    let TransportKind::Smtp(smtp) = &config.mail.transports[0].kind else { panic!("{config:?}") };
    assert_eq!((smtp.host.as_str(), smtp.port, &smtp.tls), ("env.example.com", 587, &SmtpTls::Required));
    let shown = format!("{config:?}{}", config.to_toml());
    assert!(!shown.contains("s3cret") && shown.contains("env.example.com"), "{shown}");
    assert_eq!(names(&load("", &[("SMTP_URL", "")]).unwrap()), Vec::<&str>::new());
}

#[test]
fn transports_come_by_name_or_in_the_order_that_was_given() {
    assert_eq!(names(&load(TWO, &[]).unwrap()), ["alpha", "zeta"]);
    let ordered = |list: &str| load(&format!("{TWO}[email]\ntransports = {list}\n"), &[]);
    assert_eq!(names(&ordered("['zeta', 'alpha']").unwrap()), ["zeta", "alpha"]);
    assert_eq!(names(&ordered("['alpha']").unwrap()), ["alpha"]);
    let error = ordered("['alpha', 'omega']").unwrap_err().to_string();
    assert!(error.contains("[transports.omega] is not there"), "{error}");
    let error = ordered("['alpha', 'alpha']").unwrap_err().to_string();
    assert!(error.contains("named once"), "{error}");
}

#[test]
fn what_is_wrong_is_named_and_no_password_is_shown() {
    for (text, key, hint) in [
        ("[transports.main]\n", "transports.main.url", "smtp://user:secret@"),
        ("[transports.main]\nurl = 'ftp://joe:s3cret@x'\n", "transports.main.url", "smtp"),
        ("[transports.main]\nurl = 'joe:s3cret'\n", "transports.main.url", "smtp"),
        ("[transports.main]\nurl = 'ses://eu-west-1'\n", "transports.main.url", "AWS_ACCESS_KEY_ID"),
        ("[transports.main]\nurl = 'smtp://a'\nidle = 3\n", "transports.main.idle", "unknown key"),
        ("[email]\nfrom = 'nobody'\n", "email.from", "an address"),
        ("[email]\ndomain = 'a b'\n", "email.domain", "a domain"),
        ("[ses]\ntopics = ['bounces']\n", "ses.topics[0]", "the ARN"),
    ] {
        let error = load(text, &[]).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(hint) && !error.contains("s3cret"), "{text}: {error}");
    }
}

#[test]
fn what_is_printed_loads_again() {
    let text = format!(
        "{TWO}[email]\nfrom = 'Loja \"São João\" <loja@example.com>'\ndomain = 'mail.example.com'\n\
         transports = ['zeta']\n[ses]\ntopics = ['arn:aws:sns:eu-west-1:123456789012:b']\n"
    );
    let text = text.replace("'Loja \"São João\" <", "'\"Loja \\\"São João\\\"\" <");
    let config = load(&text, &[]).unwrap();
    assert_eq!(load(&config.to_toml(), &[]).unwrap().mail, config.mail, "{}", config.to_toml());
    let ses = [("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"), ("AWS_SECRET_ACCESS_KEY", "s3cret")];
    let config = load("[transports.main]\nurl = 'ses://eu-west-1?configuration_set=x'\n", &ses).unwrap();
    assert_eq!(load(&config.to_toml(), &ses).unwrap().mail, config.mail);
    assert!(!config.to_toml().contains("s3cret"));
}
