//! Topics: which ones are listened to, and which hosts their messages may send us to.
//! Invariant: a host is compared as a whole with the one that the topic's own ARN gives; there is no pattern that a
//! bucket or a domain with a clever name could fit.
//! Never: calls a host.

use http::Uri;
use http::uri::{Authority, Scheme};

use super::SnsConfig;
use super::error::{LinkProblem, SnsConfigError, excerpt};

/// A topic that is listened to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Topic {
    arn: String,
    /// The host at which SNS serves the topic's region.
    host: String,
}

impl Topic {
    fn parse(arn: &str) -> Result<Topic, SnsConfigError> {
        let bad = || SnsConfigError::Topic { arn: excerpt(arn) };
        let parts: Vec<&str> = arn.split(':').collect();
        let &["arn", partition, "sns", region, account, name] = parts.as_slice() else { return Err(bad()) };
        let is_word = |text: &str, extra: &[u8]| {
            !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || extra.contains(&byte))
        };
        if !is_word(account, b"") || !is_word(name, b"-_.") || !is_word(region, b"-") {
            return Err(bad());
        }
        let suffix = match partition {
            "aws" | "aws-us-gov" => "amazonaws.com",
            "aws-cn" => "amazonaws.com.cn",
            _ => return Err(bad()),
        };
        Ok(Topic { arn: arn.to_owned(), host: format!("sns.{region}.{suffix}") })
    }

    pub(super) fn arn(&self) -> &str {
        &self.arn
    }
}

/// The topics that are listened to, and the hosts that are trusted for their sake.
#[derive(Clone, Debug)]
pub(super) struct Topics {
    topics: Vec<Topic>,
    extra_hosts: Vec<Authority>,
}

impl Topics {
    pub(super) fn new(config: SnsConfig) -> Result<Topics, SnsConfigError> {
        let topics = config.topics.iter().map(|arn| Topic::parse(arn)).collect::<Result<_, _>>()?;
        let extra_hosts = config.certificate_hosts.iter().map(|host| parse_host(host)).collect::<Result<_, _>>()?;
        Ok(Topics { topics, extra_hosts })
    }

    pub(super) fn named(&self, arn: &str) -> Option<&Topic> {
        self.topics.iter().find(|topic| topic.arn == arn)
    }

    /// Where a certificate lies.
    pub(super) fn certificate_link(&self, topic: &Topic, url: &str) -> Result<Uri, LinkProblem> {
        let link = self.link(topic, url)?;
        // A query would turn the request into a call of the SNS API, whose answers a stranger can shape.
        let is_pem = link.path().ends_with(".pem") && link.query().is_none();
        if is_pem { Ok(link) } else { Err(LinkProblem::NotPem) }
    }

    /// Where a message of this topic may lead.
    pub(super) fn link(&self, topic: &Topic, url: &str) -> Result<Uri, LinkProblem> {
        let link: Uri = url.parse().map_err(|_| LinkProblem::Unreadable)?;
        let (Some(scheme), Some(authority)) = (link.scheme(), link.authority()) else {
            return Err(LinkProblem::Unreadable);
        };
        if authority.as_str().contains('@') {
            return Err(LinkProblem::UserInfo);
        }
        let is_web = *scheme == Scheme::HTTPS || *scheme == Scheme::HTTP;
        if is_web && self.extra_hosts.iter().any(|extra| is_served_by(authority, extra)) {
            return Ok(link);
        }
        let host = authority.as_str();
        if host.strip_suffix(":443").unwrap_or(host) != topic.host {
            return Err(LinkProblem::Host { host: excerpt(host), expected: topic.host.clone() });
        }
        if *scheme == Scheme::HTTPS { Ok(link) } else { Err(LinkProblem::NotHttps) }
    }
}

fn parse_host(text: &str) -> Result<Authority, SnsConfigError> {
    let authority = text.parse::<Authority>().ok().filter(|authority| {
        let rest = authority.as_str().strip_prefix(authority.host());
        let is_whole = rest.is_some_and(|rest| rest.is_empty() || authority.port_u16().is_some());
        is_whole && !authority.host().is_empty() && !text.contains('@')
    });
    authority.ok_or_else(|| SnsConfigError::CertificateHost { host: excerpt(text) })
}

/// A configured host without a port stands for all its ports.
fn is_served_by(authority: &Authority, extra: &Authority) -> bool {
    let is_same_host = authority.host().eq_ignore_ascii_case(extra.host());
    is_same_host && extra.port_u16().is_none_or(|port| authority.port_u16() == Some(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARN: &str = "arn:aws:sns:us-east-1:123456789012:mail";

    fn topics(arn: &str, hosts: &[&str]) -> Topics {
        let certificate_hosts = hosts.iter().map(|&host| host.to_owned()).collect();
        Topics::new(SnsConfig { topics: vec![arn.to_owned()], certificate_hosts }).unwrap()
    }

    fn certificate_link(arn: &str, hosts: &[&str], url: &str) -> Result<Uri, LinkProblem> {
        let topics = topics(arn, hosts);
        topics.certificate_link(topics.named(arn).unwrap(), url)
    }

    #[test]
    fn certificates_lie_at_the_region_of_their_topic() {
        for (arn, url) in [
            (ARN, "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0123abcd.pem"),
            (ARN, "https://sns.us-east-1.amazonaws.com:443/x.pem"),
            ("arn:aws-cn:sns:cn-north-1:123456789012:mail", "https://sns.cn-north-1.amazonaws.com.cn/x.pem"),
            ("arn:aws-us-gov:sns:us-gov-west-1:123456789012:m.fifo", "https://sns.us-gov-west-1.amazonaws.com/x.pem"),
        ] {
            assert!(certificate_link(arn, &[], url).is_ok(), "{url}");
        }
    }

    #[test]
    fn a_foreign_certificate_is_refused_whatever_its_url_looks_like() {
        for url in [
            "https://sns.us-east-1.amazonaws.com.evil.com/x.pem",
            "https://evil.com/sns.us-east-1.amazonaws.com/x.pem",
            "https://evil.com/?sns.us-east-1.amazonaws.com/x.pem",
            "https://evil.com#sns.us-east-1.amazonaws.com/x.pem",
            "https://evilsns.us-east-1.amazonaws.com/x.pem",
            "https://sns.us-east-1.evilamazonaws.com/x.pem",
            "https://sns.us-east-1.amazonaws.com.cn/x.pem",
            "https://sns.us-east-1.amazonaws.com./x.pem",
            "https://SNS.us-east-1.AMAZONAWS.com/x.pem",
            "https://sns.eu-west-1.amazonaws.com/x.pem",
            "https://sns.s3.amazonaws.com/x.pem",
            "https://sns.s3-us-east-1.amazonaws.com/x.pem",
            "https://sns.us-east-1.s3.amazonaws.com/x.pem",
            "https://us-east-1.amazonaws.com/x.pem",
            "https://sns-us-east-1.amazonaws.com/x.pem",
            "https://amazonaws.com/x.pem",
            "https://sns.us-east-1.amazonaws.com:8443/x.pem",
            "https://sns.us-east-1.amazonaws.com:0443/x.pem",
            "https://sns.us-east-1.amazonaws.com:443:443/x.pem",
            "https://sns.us-east-1.amazonaws.com:/x.pem",
            "https://sns.us-east-1.amazonaws.com%2eevil.com/x.pem",
            "https://sns.us-east-1.amazonaws.com\u{3002}evil.com/x.pem",
            "https://sns.us-east-1.amazonaws.com\\.evil.com/x.pem",
            "https://sns.us-east-1.amazonaws.com@evil.com/x.pem",
            "https://sns.us-east-1.amazonaws.com:443@evil.com/x.pem",
            "https://evil.com@sns.us-east-1.amazonaws.com/x.pem",
            "https://@sns.us-east-1.amazonaws.com/x.pem",
            "http://sns.us-east-1.amazonaws.com/x.pem",
            "http://sns.us-east-1.amazonaws.com:443/x.pem",
            "ftp://sns.us-east-1.amazonaws.com/x.pem",
            "file:///sns.us-east-1.amazonaws.com/x.pem",
            "//sns.us-east-1.amazonaws.com/x.pem",
            "sns.us-east-1.amazonaws.com/x.pem",
            "https://127.0.0.1/x.pem",
            "https://[::1]/x.pem",
            "https://localhost/x.pem",
            "https://sns.us-east-1.amazonaws.com/",
            "https://sns.us-east-1.amazonaws.com/x.pem.html",
            "https://sns.us-east-1.amazonaws.com/?Action=GetTopicAttributes&x=.pem",
            "https://sns.us-east-1.amazonaws.com/x.pem?Action=ConfirmSubscription",
            "https://sns.us-east-1.amazonaws.com /x.pem",
            " https://sns.us-east-1.amazonaws.com/x.pem",
            "https://sns.us-east-1.amazonaws.com\n/x.pem",
            "https:///x.pem",
            "",
        ] {
            assert!(certificate_link(ARN, &[], url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_refused_host_is_named_with_what_it_should_be() {
        let refused = certificate_link(ARN, &[], "https://sns.eu-west-1.amazonaws.com/x.pem").unwrap_err().to_string();
        assert!(refused.contains("sns.eu-west-1.amazonaws.com;"), "{refused}");
        assert!(refused.contains("must be sns.us-east-1.amazonaws.com"), "{refused}");
    }

    #[test]
    fn extra_hosts_are_open_with_plain_http_and_at_the_ports_configured() {
        let hosts = ["localhost", "127.0.0.1:4566"];
        for (url, is_open) in [
            ("http://localhost/x.pem", true),
            ("http://localhost:4566/x.pem", true),
            ("https://LOCALHOST:1/x.pem", true),
            ("http://127.0.0.1:4566/x.pem", true),
            ("http://127.0.0.1:4567/x.pem", false),
            ("http://127.0.0.1/x.pem", false),
            ("http://localhost.evil.com/x.pem", false),
            ("http://evil@localhost/x.pem", false),
            ("ftp://localhost/x.pem", false),
            ("http://localhost/x", false),
        ] {
            assert_eq!(certificate_link(ARN, &hosts, url).is_ok(), is_open, "{url}");
        }
    }

    #[test]
    fn settings_that_cannot_work_are_refused_with_what_would() {
        for arn in [
            "",
            "mail",
            "arn:aws:sns:us-east-1:123456789012",
            "arn:aws:sns:us-east-1:123456789012:mail:6b1f4c4e",
            "arn:aws:sqs:us-east-1:123456789012:mail",
            "arn:aws:sns::123456789012:mail",
            "arn:aws:sns:us-east-1.evil.com/:123456789012:mail",
            "arn:aws:sns:us-east-1:123456789012:mail\nType",
            "arn:elsewhere:sns:us-east-1:123456789012:mail",
        ] {
            let error = Topic::parse(arn).unwrap_err().to_string();
            assert!(error.contains("arn:aws:sns:us-east-1:123456789012:mail-feedback"), "{error}");
        }
        for host in ["", "http://localhost", "localhost/x", "a@localhost", "localhost:", "localhost:99999", ":80"] {
            let config = SnsConfig { topics: Vec::new(), certificate_hosts: vec![host.to_owned()] };
            let error = Topics::new(config).expect_err(host).to_string();
            assert!(error.contains("`host` or `host:port`"), "{error}");
        }
    }
}
